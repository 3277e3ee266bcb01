"""Puts a device together: bundle → task → model → rounds → agent.

The program, the fleets in one process and the tests all use these functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.log import Log
from broker.protocol.messages import DeviceState, to_bytes
from broker.protocol.slice import Slice
from broker.protocol.topics import Topics
from broker.transport.channel import OpenChannel
from broker.transport.transport import Will
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.agent import Agent
from firmware_sim.device.compression import Compression
from firmware_sim.device.publisher import Publisher
from firmware_sim.steering.steering import Steering
from firmware_sim.training.checkpoint import Checkpoints
from firmware_sim.training.learner import Learner
from firmware_sim.training.pace import sets_limits
from firmware_sim.training.prefixed import open_model
from firmware_sim.training.rounds import Plan, Rounds
from firmware_sim.training.runtime import runtime_for
from firmware_sim.training.sensors import Pace
from firmware_sim.training.task import Task
from firmware_sim.training.waiting import Gate, Waits, lacking
from firmware_sim.updating.updates import NO_UPDATES, NoUpdates, Updates


def make_rounds(
    bundle: Bundle,
    task: Task,
    *,
    device: str,
    state: Path,
    plan: Plan,
    log: Log,
    runtime: str | None = None,
    threads: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    cap_reached: Callable[[], bool] = lambda: False,
    alive: Callable[[], None] = lambda: None,
) -> Rounds:
    """Loads the bundle's model and prepares rounds of training, with checkpoints in `state`.

    By default the runtime is the one that the bundle was made for, and threads are the profile's.
    Training waits as the profile says, and while the task lacks examples.
    """
    manifest = bundle.manifest
    profile = manifest.profile
    gates: list[Gate] = [lacking(task.waits_for)]
    if sets_limits(profile):
        gates.append(Pace(profile, log, clock=clock))
    model = open_model(
        bundle,
        runtime=runtime_for(bundle, runtime),
        threads=threads or profile.threads,
    )
    checkpoints = Checkpoints(state, device=device, bundle=bundle.model_digest)
    learner = Learner(model, task, manifest.shared, sent=manifest.sent, device=device)
    return Rounds(
        learner,
        checkpoints,
        plan,
        log,
        clock=clock,
        cap_reached=cap_reached,
        alive=alive,
        waits=Waits(log, duty_cycle=profile.duty_cycle, gates=gates, clock=clock),
    )


def make_agent(
    device: str,
    rounds: Rounds,
    shared: Slice,
    *,
    topics: Topics,
    open_channel: OpenChannel,
    limit: int,
    log: Log,
    about: Mapping[str, Any] | None = None,
    encoding: str = "float32",
    sent: Slice | None = None,
    key: bytes | None = None,
    guard: bool = False,
    vitals: Callable[[], Mapping[str, float]] = dict,
    clock: Callable[[], float] = time.monotonic,
    updates: Updates | NoUpdates = NO_UPDATES,
    steered_in: Path | None = None,
) -> Agent:
    """Connects a device that trains `rounds` to its fleet; `limit` is the largest message.

    `sent` are the shared tensors that it trains, by default all of them.
    With `key` it believes only what the holder has signed; `vitals` are numbers to publish.
    What the operator asks is kept in `steered_in`, by default beside the checkpoints; `updates`
    takes the packs that he offers.
    """
    gone = to_bytes(DeviceState(device=device, online=False))
    channel = open_channel(
        client_id=topics.client_id(device),
        subscriptions=(*topics.of_device(device), *updates.subscriptions),
        will=Will(topics.state(device), gone),
        limit=limit,
    )
    steering = Steering(device, steered_in or rounds.folder, topics, key=key)
    rounds.waits.gates = (steering, *rounds.waits.gates)
    return Agent(
        device=device,
        shared=shared,
        rounds=rounds,
        channel=channel,
        topics=topics,
        limit=limit,
        log=log,
        publish=Publisher(
            device,
            shared,
            about or {},
            sent=sent,
            channel=channel,
            topics=topics,
            waits=rounds.waits,
            vitals=vitals,
        ),
        steering=steering,
        compression=Compression(encoding, rounds.residual),
        sent=sent,
        key=key,
        guard=guard,
        clock=clock,
        updates=updates,
    )
