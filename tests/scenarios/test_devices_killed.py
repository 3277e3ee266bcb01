"""Devices are killed or stopped, and started again with the same command.

A weak and a powerful device learn digits with an aggregator over mosquitto, all of them processes.
Every round needs both devices. Expected: whatever was trained is sent under one nonce, however
often; every device counts once in every round; a stopped device says so and goes on where it was.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.aggregator.slice_file import read_slice
from broker.protocol.messages import DeviceState, Shared, Update, Verdict
from broker.protocol.slice import Tensors
from broker.protocol.topics import Topics
from firmware_sim.bundle.reader import SLICE, Bundle
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from profiles.errors import INTERRUPTED
from tests.harness.arithmetic import assert_same, replay
from tests.harness.programs import Program, Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.watcher import Watcher, in_round

pytestmark = pytest.mark.xdist_group("fleet")

MOMENTS = ("training", "sent", "waiting")


def test_killed_at_random_moments(
    bundles: dict[str, Bundle],
    programs: Programs,
    watcher: Watcher,
    topics: Topics,
) -> None:
    """In every round but the last, one device or both are killed: while they train, as soon as
    their update is on the wire, or when it is accepted and the other one is still at it."""
    rounds = 7
    dice = random.Random(1)
    slices = [part for b in bundles.values() for part in ("--slice", b.folder / SLICE)]
    aggregator = programs.aggregator(
        *slices, "--quorum", "2", "--deadline", "60", "--rounds", str(rounds)
    )

    def start(name: str) -> Program:
        options = ("--steps", "30", "--resend-seconds", "0.5", "--checkpoint-seconds", "0.02")
        return programs.device(name, bundles[name], *options)

    running = {name: start(name) for name in bundles}
    resumed = 0
    for number in range(rounds - 1):
        for name in dice.choice([("weak",), ("powerful",), ("weak", "powerful")]):
            device, moment = running[name], dice.choice(MOMENTS)
            if moment == "training":
                device.wait_for("evaluated", round=number)
                time.sleep(dice.uniform(0, 0.1))
            elif moment == "sent":
                watcher.wait_for(Update, topics.update(name), in_round(number))
            else:
                aggregator.wait_for("accepted", device=name, round=number)
            device.kill()
            resumed += bool(device.history("resumed"))
            running[name] = start(name)
    assert [p.exit_code() for p in (aggregator, *running.values())] == [0, 0, 0]
    final = watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)

    assert final.round == rounds
    assert resumed > 0
    nonces: dict[tuple[str, int], set[str]] = {}
    for update in watcher.heard(Update, topics.update("+")):
        nonces.setdefault((update.device, update.round), set()).add(update.nonce)
    assert sorted(nonces) == sorted((name, n) for name in bundles for n in range(rounds))
    assert all(len(used) == 1 for used in nonces.values())
    counted = [(e["device"], e["round"]) for e in aggregator.history("accepted")]
    assert sorted(counted) == sorted(nonces)
    assert_same(final.tensors, replay(start_values(bundles), watcher.accepted()))


def test_killed_between_sending_and_the_verdict(
    bundles: dict[str, Bundle], programs: Programs, watcher: Watcher, topics: Topics
) -> None:
    """The aggregator hangs, so that there is no verdict until the device has come back."""
    aggregator = programs.aggregator("--slice", bundles["weak"].folder / SLICE, "--rounds", "2")

    def start() -> Program:
        return programs.device("pi", bundles["weak"], "--steps", "300", "--resend-seconds", "60")

    device = start()
    device.wait_for("evaluated", round=0)
    aggregator.send(signal.SIGSTOP)
    update = watcher.wait_for(Update, topics.update("pi"))
    device.kill()
    watcher.wait_for(DeviceState, topics.state("pi"), lambda state: not state.online)
    device = start()
    assert device.wait_for("resumed")["unsent"]
    device.wait_for("connected")
    aggregator.send(signal.SIGCONT)
    assert [aggregator.exit_code(), device.exit_code()] == [0, 0]
    watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)

    sent = [packet.payload for packet in watcher.packets if packet.topic == topics.update("pi")]
    assert len(sent) == 3  # the first one twice, and that of the other round
    assert sent[0] == sent[1]
    assert [e["round"] for e in aggregator.history("accepted")] == [0, 1]
    verdicts = [v for v in watcher.heard(Verdict, topics.verdict("pi")) if v.about == "update"]
    assert [(v.accepted, v.round) for v in verdicts] == [(True, 0), (True, 0), (True, 1)]
    assert [v.nonce == update.nonce for v in verdicts] == [True, True, False]


def test_stopped_in_the_middle_of_a_round(
    bundles: dict[str, Bundle], programs: Programs, watcher: Watcher, topics: Topics, tmp_path: Path
) -> None:
    aggregator = programs.aggregator("--slice", bundles["weak"].folder / SLICE, "--rounds", "1")
    done = stop_and_go_on(programs, bundles["weak"], watcher, topics, tmp_path)
    assert aggregator.exit_code() == 0
    assert (done.round, done.steps_done) == (1, 0)
    assert [update.round for update in watcher.accepted()] == [0]


def test_stopped_while_others_go_on_asynchronously(
    bundles: dict[str, Bundle],
    programs: Programs,
    watcher: Watcher,
    topics: Topics,
    tmp_path: Path,
    scripted: Callable[..., ScriptedDevice],
) -> None:
    """Nobody waits for anybody: what was half trained counts when it is done, only as older."""
    merges = 6
    aggregator = programs.aggregator(
        *("--slice", bundles["weak"].folder / SLICE, "--mode", "async", "--rounds", str(merges))
    )
    turns = threading.Semaphore(merges - 1)  # the other one leaves the last merge to the device
    done = stop_and_go_on(
        programs,
        bundles["weak"],
        watcher,
        topics,
        tmp_path,
        lambda: scripted("other", bundles["weak"].manifest.shared, pace=turns.acquire),
        merges - 1,
    )
    turns.release()
    assert aggregator.exit_code() == 0
    assert done.round == merges
    accepted = [(update.device, update.round) for update in watcher.accepted()]
    assert accepted == [("other", n) for n in range(merges - 1)] + [("pi", 0)]


def stop_and_go_on(
    programs: Programs,
    bundle: Bundle,
    watcher: Watcher,
    topics: Topics,
    folder: Path,
    others: Callable[[], Any] = lambda: None,
    merges: int = 0,
) -> Checkpoint:
    """SIGTERM in round 0; `others` then make so many merges before the device comes back."""
    steps = 500

    def start() -> Program:
        return programs.device("pi", bundle, "--steps", str(steps), "--resend-seconds", "1")

    def kept() -> Checkpoint:
        digest = bundle.model_digest
        checkpoint = Checkpoints(folder / "pi", device="pi", bundle=digest).load()
        assert checkpoint is not None
        return checkpoint

    device = start()
    device.wait_for("evaluated", round=0)
    device.send(signal.SIGTERM)
    assert device.exit_code() == INTERRUPTED == 130
    said = device.log.read_text().splitlines()[-1]
    assert said == f"stopped; {folder / 'pi'} keeps everything, the same command goes on"
    watcher.wait_for(DeviceState, topics.state("pi"), lambda state: not state.online)
    half = kept()
    assert 0 < half.steps_done < steps
    assert (half.round, half.outbox, half.base.keys()) == (0, b"", start_values(bundle).keys())
    others()
    for number in range(merges):
        watcher.wait_for(Shared, topics.reply("other"), in_round(number + 1))

    device = start()
    assert device.wait_for("resumed")["steps_done"] == half.steps_done
    assert device.wait_for("trained", round=0)["steps"] == steps - half.steps_done
    assert device.exit_code() == 0
    watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)
    return kept()


def start_values(bundles: dict[str, Bundle] | Bundle) -> Tensors:
    bundle = bundles["weak"] if isinstance(bundles, dict) else bundles
    return read_slice(bundle.folder / SLICE)[1]
