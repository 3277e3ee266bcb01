"""The aggregator service: merges what the devices of a fleet learn.

    python -m broker.aggregator --slice build/weak/shared.onnx --fleet greenhouse \\
        --broker mqtt://127.0.0.1:1883 --quorum 3 --rounds 100 --state state/aggregator

With --embedded it brings its own broker, and nothing has to be installed. Everything it has
promised is in --state: kill it at any moment and start it again with the same command.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from broker.aggregator.contract import EXCHANGES, Contract
from broker.aggregator.service import Aggregator, announcement
from broker.aggregator.slice_file import read_slice
from broker.aggregator.store import Identity, Store
from broker.errors import (
    SettingsRefused,
)
from broker.log import Log
from broker.merging.coordinator import MODES, Settings, State
from broker.merging.merge import MERGES, MergeRule
from broker.merging.optimizers import Delta, parse_optimizer
from broker.merging.staleness import STALENESS
from broker.protocol.quantisation import DOWNLINKS
from broker.protocol.slice import Slice, Tensors, union
from broker.protocol.topics import AGGREGATOR, Topics
from broker.systemd import Watchdog
from broker.transport.address import parse_address
from broker.transport.options import add_link_options, open_channel
from broker.transport.transport import Will
from profiles.errors import StemshareError

LINGER_SECONDS = 30.0  # with an embedded broker, which ends with us


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m broker.aggregator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--slice",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="shared.onnx of a bundle; once for each kind of device",
    )
    add("--fleet", required=True, help="name of the fleet")
    add("--state", type=Path, required=True, metavar="DIR", help="where everything is kept")
    add("--mode", choices=MODES, default="sync", help="wait for rounds, or merge at once (sync)")
    add("--merge", choices=MERGES, default="samples", help="how updates are merged (samples)")
    add("--byzantine", type=int, default=0, metavar="F", help="devices that may lie (0)")
    add("--clip-norm", type=float, metavar="NORM", help="scale larger updates down to this norm")
    add("--exchange", choices=EXCHANGES, default="delta", help="what devices send (delta)")
    add(
        "--optimizer",
        default="sgd:0.01",
        metavar="NAME:RATE",
        help="applies gradients: sgd:RATE or adam:RATE (default %(default)s)",
    )
    add(
        "--staleness",
        choices=STALENESS,
        default="polynomial",
        help="async: an update s merges old counts 1/√(1+s), or fully (polynomial)",
    )
    add("--quorum", type=int, default=1, metavar="N", help="devices that a round needs (1)")
    add(
        "--deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a round closes then with whoever has sent (default %(default)g)",
    )
    add("--rounds", type=int, metavar="R", help="stop after so many merges (default: never)")
    add(
        "--downlink",
        choices=DOWNLINKS,
        default="float32",
        help="how θ_shared is sent; float16 halves it (default %(default)s)",
    )
    add("--embedded", action="store_true", help="bring a broker along, at the --broker address")
    add(
        "--inbox-mib",
        type=int,
        default=256,
        metavar="MIB",
        help="updates that may wait; more are dropped and sent again (default %(default)s)",
    )
    add_link_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments().parse_args(argv)
    try:
        with contextlib.ExitStack() as stack:
            finished = serve(args, stack)
    except StemshareError as error:
        sys.stderr.write(f"{error.report}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before there was anything to stop
        finished = False
    if not finished:
        sys.stderr.write(f"stopped; {args.state} keeps everything, the same command goes on\n")


def serve(args: argparse.Namespace, stack: contextlib.ExitStack) -> bool:
    """Puts the parts together and runs; whether to the last round, or to SIGINT or SIGTERM."""
    log = Log()
    topics = Topics(args.fleet)
    address = parse_address(args.broker)
    if args.inbox_mib < 1:
        raise SettingsRefused(f"an inbox of {args.inbox_mib} MiB holds nothing: take 1 or more.")
    known, start = read_slices(args.slice)
    settings = Settings(
        mode=args.mode,
        merge=MergeRule(args.merge, byzantine=args.byzantine, clip_norm=args.clip_norm),
        optimizer=Delta() if args.exchange == "delta" else parse_optimizer(args.optimizer),
        quorum=args.quorum,
        deadline_seconds=args.deadline,
        rounds=args.rounds,
        staleness=args.staleness,
    )
    optimizer = type(settings.optimizer).__name__
    merging = f"{args.merge}, clip norm {args.clip_norm}, {args.staleness}, {settings.optimizer}"
    identity = Identity(
        args.fleet,
        known.fingerprint,
        args.mode,
        args.exchange,
        optimizer,
        merging if args.mode == "async" else "",
    )
    store = stack.enter_context(contextlib.closing(Store(args.state, identity)))
    state = store.load()
    if state is None:
        state = State(secrets.token_hex(8), 0, start, settings.optimizer.initial(start))
        store.snapshot(state)
    contract = Contract.of(known, exchange=args.exchange, run=state.run)
    if args.embedded:
        from broker.brokers.embedded import EmbeddedBroker  # takes a sixth of the time to start

        stack.enter_context(EmbeddedBroker(host=address.host, port=address.port))
    channel = open_channel(
        args,
        client_id=topics.client_id(AGGREGATOR),
        subscriptions=topics.of_aggregator(),
        will=Will(topics.aggregator_state, announcement("offline", contract, settings)),
        limit=contract.largest_message,
        inbox_bytes=args.inbox_mib * 2**20,
    )
    stack.enter_context(contextlib.closing(channel))
    watchdog = Watchdog()
    aggregator = Aggregator(
        contract=contract,
        settings=settings,
        state=state,
        store=store,
        channel=channel,
        topics=topics,
        log=log,
        downlink=args.downlink,
        alive=watchdog.alive,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: aggregator.stop())
    watchdog.ready()
    return aggregator.run(linger_seconds=LINGER_SECONDS if args.embedded else 0.0)


def read_slices(files: Sequence[Path]) -> tuple[Slice, Tensors]:
    """The union of the slices; a tensor starts from the first file that has it."""
    read = [read_slice(file) for file in files]
    start: Tensors = {}
    for _, values in read:
        start = values | start
    return union(found for found, _ in read), start


if __name__ == "__main__":
    main()
