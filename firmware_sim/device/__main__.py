"""The program `python -m firmware_sim.device`: parses options, trains, prints the scores."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from broker.log import Log
from broker.systemd import Watchdog
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.assembly import assembled
from firmware_sim.device.check import check_state, salvage_state
from firmware_sim.device.make_task import STREAM
from firmware_sim.device.options import arguments, read_options
from firmware_sim.errors import CapReached, Restart, Stopped
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.training.limits import Caps, limit_data
from firmware_sim.updating.supervisor import OnTrial, start_again, try_out
from profiles import StemshareError
from profiles.errors import FAILED
from profiles.text import printable


def main(argv: Sequence[str] | None = None) -> None:
    parser, log = arguments(), Log()
    trial: OnTrial | None = None
    try:
        asked = parser.parse_args(argv)
        if _is_looked_after(asked):
            sys.exit(look_after(parser, asked))
        if asked.pack and asked.state:
            trial = try_out(asked.state, log)
        args = read_options(parser, argv, log, on_trial=trial is not None)
        args.takes_offers = args.pack is not None
        if args.task == STREAM and args.source is None:
            parser.error(f"--task {STREAM} needs --source")
    except StemshareError as error:
        end(error, log, trial)
    try:
        scores = work(args, log)
    except StemshareError as error:
        end(error, log, trial)
    except MemoryError:  # at the hard limit; the last checkpoint stays
        end(CapReached.keeping(args.state), log, trial)
    except KeyboardInterrupt:  # before there was anything to stop
        end(Stopped.keeping(args.state), log, trial)
    log.event("ended", peak_bytes=peak_memory_bytes())
    print(json.dumps(scores))


def end(error: StemshareError, log: Log, trial: OnTrial | None) -> NoReturn:
    """Ends the program, or lets it begin again; one that tries a pack leaves that to its parent."""
    log.end_line()
    if isinstance(error, Restart):
        if trial is None:
            start_again()
        sys.exit(error.exit_code)
    if trial is not None and type(error) is not Stopped:
        trial.failed(str(error))
    sys.stderr.write(f"{error.report}\n")
    sys.exit(error.exit_code)


def _is_looked_after(args: argparse.Namespace) -> bool:
    return bool(
        args.check or args.salvage or args.show_store or args.export_store or args.erase_store
    )


def look_after(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Shows, checks or changes what a state folder keeps; returns the exit code."""
    if args.state is None:
        parser.error("--check, --salvage and the options of the store need --state")
    if args.check:
        found = check_state(args.state)
        print("\n".join(printable(part.line) for part in found))
        return FAILED if any(part.problem for part in found) else 0
    from firmware_sim.store.looking_after import erase_store, export_store, show_store

    if args.salvage:
        lines = salvage_state(args.state)
    elif args.show_store:
        lines = show_store(args.state)
    elif args.export_store:
        lines = export_store(args.state, args.export_store)
    else:
        lines = erase_store(args.state)
    print("\n".join(map(printable, lines)))
    return 0


def work(args: argparse.Namespace, log: Log) -> dict[str, float]:
    """Trains alone or in a fleet until the last round; returns the final scores."""

    def limit(bundle: Bundle, caps: Caps) -> Caps:
        limit_data(caps)
        return caps

    watchdog = Watchdog()
    with assembled(args, log, limit=limit, alive=watchdog.alive) as device:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: device.rounds.stop())
        watchdog.ready()
        return device.train()


if __name__ == "__main__":
    main()
