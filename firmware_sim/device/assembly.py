"""Puts a device together from its options: the program and `Device` both begin here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from broker.log import Log
from broker.protocol.topics import Topics, check_name
from broker.transport.address import parse_address
from broker.transport.options import (
    open_channel,
    part_bytes_within,
    simulated_link,
)
from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.device.agent import Agent
from firmware_sim.device.build import make_agent, make_rounds
from firmware_sim.device.make_task import STREAM, make_task
from firmware_sim.device.options import interaction_rate, plan_of, task_options
from firmware_sim.errors import SensorError
from firmware_sim.packs.format import read_key
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.training.checkpoint import claim_state
from firmware_sim.training.limits import (
    Caps,
    caps_of,
    check_profile,
    check_storage,
    return_freed_memory,
    stored_bytes,
)
from firmware_sim.training.rounds import Rounds, train_alone
from firmware_sim.training.sensors import read_celsius
from firmware_sim.training.task import Task
from firmware_sim.updating.inheriting import inherit
from firmware_sim.updating.updates import NO_UPDATES, NoUpdates, Updates

if TYPE_CHECKING:
    from firmware_sim.tasks.open_stream import Stream

LARGEST_MESSAGE = 256 * 2**20  # bytes; θ_shared of the fleet's largest slice
_USUAL_ROUNDS = 10  # alone, of tasks that have all their examples from the beginning


@dataclass(frozen=True, eq=False)
class Assembly:
    """A device that is ready to train, as long as its context lasts."""

    args: argparse.Namespace
    bundle: Bundle
    rounds: Rounds
    log: Log
    stream: Stream | None  # of the task `stream`
    caps: Caps

    def train(self) -> dict[str, float]:
        """Trains alone or in a fleet until the last round; returns the final scores."""
        args, rounds = self.args, self.rounds
        self.log.event(
            "start",
            device=args.id,
            branch=self.bundle.manifest.branch.name,
            task=args.task,
            steps=rounds.plan.steps,
            rate=interaction_rate(args, self.bundle.manifest.profile),
        )
        if args.isolated:
            usual = sys.maxsize if self.stream else _USUAL_ROUNDS
            return train_alone(rounds, args.rounds or usual)
        with closing(_agent(args, self.bundle, rounds, self.log, self.caps)) as agent:
            try:
                return agent.run()
            finally:
                agent.leave()


@contextmanager
def assembled(
    args: argparse.Namespace,
    log: Log,
    *,
    limit: Callable[[Bundle, Caps], Caps],
    alive: Callable[[], None] = lambda: None,
) -> Iterator[Assembly]:
    """Checks the options, loads the bundle and claims the state folder.

    `limit` is given the caps of the bundle's profile, may enforce them, and returns those that
    the device keeps; `alive` is called often while the device works.
    """
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
    caps = limit(bundle, caps)
    with ExitStack() as stack:
        stack.enter_context(claim_state(args.state))
        stream = None
        if args.task == STREAM:  # other devices do without its memory
            from firmware_sim.tasks.open_stream import open_stream

            stream = open_stream(args, bundle, caps, log, stack)
        task: Task = stream.task if stream else make_task(args.task, bundle, task_options(args))
        rounds = make_rounds(
            bundle,
            task,
            device=args.id,
            state=args.state,
            plan=plan_of(args, bundle.manifest.profile),
            log=log,
            runtime=args.runtime,
            cap_reached=caps.reached,
            alive=alive,
        )
        inherits = getattr(args, "inherits", None)
        if inherits not in (None, args.state):
            inherit(rounds.learner.model, inherits, log)
        if stream:  # it answers and takes examples only with the weights of its checkpoint
            rounds.renewed = partial(_renew, stream, rounds)
            rounds.restore()
            rounds.renewed()
            stream.feed()
        yield Assembly(args, bundle, rounds, log, stream, caps)


def _renew(stream: Stream, rounds: Rounds) -> None:
    """Answers come from the newest weights, and by the newest threshold."""
    stream.predictor.renew(rounds.learner.model.call("get_state"), stream.task.threshold)


def _agent(args: argparse.Namespace, bundle: Bundle, rounds: Rounds, log: Log, caps: Caps) -> Agent:
    profile = bundle.manifest.profile
    key = read_key(args.aggregator_key) if args.aggregator_key else None
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
            **({"pack": str(args.pack_version)} if args.pack else {}),
        },
        encoding=profile.update_quantisation,
        sent=bundle.manifest.sent,
        key=key,
        guard=args.guard,
        vitals=partial(_vitals, caps, Path(profile.temperature_file)),
        updates=_updates(args, bundle, key, log, caps),
        steered_in=args.state.parent if args.pack else args.state,
    )


def _updates(
    args: argparse.Namespace, bundle: Bundle, key: bytes | None, log: Log, caps: Caps
) -> Updates | NoUpdates:
    """A pack on its way, unpacked, and the one that it may replace fit in the storage together."""
    if not getattr(args, "takes_offers", False):  # the program started from a pack does
        return NO_UPDATES
    return Updates(
        args.id,
        args.pack_version,
        args.packs,
        Topics(args.fleet),
        key=key,
        room=max(0, (caps.storage_bytes - stored_bytes(bundle.manifest)) // 2),
        check=args.check_offered,
        cap_reached=caps.reached,
        log=log,
    )


def _vitals(caps: Caps, thermometer: Path) -> dict[str, float]:
    """Returns the peak of memory against its cap, and the temperature where it can be read."""
    found: dict[str, float] = {
        "memory_bytes": peak_memory_bytes(),
        "memory_cap_bytes": caps.memory_bytes,
    }
    with suppress(SensorError):
        found["temperature_celsius"] = read_celsius(thermometer)
    return found
