"""The program `python -m firmware_sim.device`: parses options, trains, prints the scores."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from broker.log import Log
from broker.protocol.topics import Topics, check_name
from broker.systemd import Watchdog
from broker.transport.address import parse_address
from broker.transport.options import open_channel, part_bytes_within, simulated_link
from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.device.agent import Agent
from firmware_sim.device.build import make_agent, make_rounds
from firmware_sim.device.check import check_state, salvage_state
from firmware_sim.device.isolated import train_alone
from firmware_sim.device.make_task import make_task
from firmware_sim.device.options import (
    arguments,
    interaction_rate,
    plan_of,
    read_options,
    task_options,
)
from firmware_sim.errors import CapReached, Stopped
from firmware_sim.packs.format import read_key
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.training.checkpoint import claim_state
from firmware_sim.training.limits import (
    Caps,
    caps_of,
    check_profile,
    check_storage,
    limit_data,
    return_freed_memory,
)
from firmware_sim.training.rounds import Rounds
from profiles import StemshareError
from profiles.errors import FAILED
from profiles.text import printable

LARGEST_MESSAGE = 256 * 2**20  # bytes; θ_shared of the fleet's largest slice


def main(argv: Sequence[str] | None = None) -> None:
    parser, log = arguments(), Log()
    try:
        asked = parser.parse_args(argv)
        if asked.check or asked.salvage:
            sys.exit(look_after(parser, asked))
        args = read_options(parser, argv, log)
    except StemshareError as error:
        end(error, log)
    try:
        scores = work(args, log)
    except StemshareError as error:
        end(error, log)
    except MemoryError:  # at the hard limit; the last checkpoint stays
        end(CapReached.keeping(args.state), log)
    except KeyboardInterrupt:  # before there was anything to stop
        end(Stopped.keeping(args.state), log)
    log.event("ended", peak_bytes=peak_memory_bytes())
    print(json.dumps(scores))


def end(error: StemshareError, log: Log) -> NoReturn:
    log.end_line()
    sys.stderr.write(f"{error.report}\n")
    sys.exit(error.exit_code)


def look_after(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Checks or salvages the state folder; returns the exit code."""
    if args.state is None:
        parser.error("--check and --salvage need --state")
    if args.salvage:
        print("\n".join(map(printable, salvage_state(args.state))))
        return 0
    found = check_state(args.state)
    print("\n".join(printable(part.line) for part in found))
    return FAILED if any(part.problem for part in found) else 0


def work(args: argparse.Namespace, log: Log) -> dict[str, float]:
    """Trains alone or in a fleet until the last round; returns the final scores."""
    return_freed_memory()
    check_name("device", args.id)
    if not args.isolated:  # a mistyped name or address is reported before anything is loaded
        Topics(args.fleet)
        parse_address(args.broker)
    bundle = open_bundle(args.bundle)
    if args.profile:
        check_profile(bundle, args.profile)
    caps = caps_of(bundle, args.memory_cap_mib)
    check_storage(bundle, args.state, caps)
    limit_data(caps)
    watchdog = Watchdog()
    rounds = _rounds(args, bundle, caps, watchdog, log)
    with claim_state(args.state):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: rounds.stop())
        log.event(
            "start",
            device=args.id,
            branch=bundle.manifest.branch.name,
            task=args.task,
            steps=rounds.plan.steps,
            rate=interaction_rate(args, bundle.manifest.profile),
        )
        watchdog.ready()
        if args.isolated:
            return train_alone(rounds, args.rounds)
        agent = _agent(args, bundle, rounds, log)
        with contextlib.closing(agent):
            try:
                return agent.run()
            finally:
                agent.leave()


def _rounds(
    args: argparse.Namespace, bundle: Bundle, caps: Caps, watchdog: Watchdog, log: Log
) -> Rounds:
    return make_rounds(
        bundle,
        make_task(args.task, bundle, task_options(args)),
        device=args.id,
        state=args.state,
        plan=plan_of(args, bundle.manifest.profile),
        log=log,
        runtime=args.runtime,
        cap_reached=caps.reached,
        alive=watchdog.alive,
    )


def _agent(args: argparse.Namespace, bundle: Bundle, rounds: Rounds, log: Log) -> Agent:
    profile = bundle.manifest.profile
    link = simulated_link(
        args, bandwidth_kbps=profile.bandwidth_kbps, seed=f"{args.seed}/{args.id}"
    )
    return make_agent(
        args.id,
        rounds,
        bundle.manifest.shared,
        topics=Topics(args.fleet),
        open_channel=partial(
            open_channel,
            args,
            inbox_bytes=2 * LARGEST_MESSAGE,
            part_bytes=part_bytes_within(profile.packet_limit_kib),
            shape=link,
        ),
        limit=LARGEST_MESSAGE,
        log=log,
        about={
            "profile": profile.name,
            "branch": bundle.manifest.branch.name,
            "runtime": rounds.learner.model.runtime,
        },
        encoding=profile.update_quantisation,
        key=read_key(args.aggregator_key) if args.aggregator_key else None,
        guard=args.guard,
    )


if __name__ == "__main__":
    main()
