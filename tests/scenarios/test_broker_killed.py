"""mosquitto is killed in the middle of a round, and started again on the same port.

An aggregator process and three agents are connected; one agent has sent its update for the round
and the others are still training when SIGKILL ends the broker. It comes back in one of two ways:
it has forgotten everything (no retained message, no session, no queue), or it wakes up in the past,
with what it had written to disk some rounds ago: an old θ_shared, old sessions and old updates in
their queues. Expected: everybody connects again by itself, the aggregator publishes its state and
θ_shared again, every round is merged from exactly one update of each device, and no old θ_shared
is trained on.
"""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.messages import AggregatorState, Reason, Shared, Update
from broker.protocol.topics import Topics
from tests.harness.arithmetic import UNBOUNDED, assert_same, replay
from tests.harness.programs import Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.slices import SliceFile
from tests.harness.waiting import wait_until
from tests.harness.watcher import Watcher, in_round

DEVICES = ("early", "two", "three")
KILLS = 3
ROUNDS = 24
APART = 5  # rounds from one kill to the next


@pytest.fixture(params=[False, True], ids=["forgets", "wakes up in the past"])
def remembers(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def mosquitto(remembers: bool, tmp_path: Path) -> Iterator[Mosquitto]:
    """With persistence it writes when it is asked to, and not by itself while a test lasts."""
    with Mosquitto(tmp_path / "mosquitto", persistence=remembers) as running:
        yield running


class Gate:
    """Lets devices train the rounds below `limit`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.limit = 0

    def open_until(self, limit: int) -> None:
        with self._changed:
            self.limit = limit
            self._changed.notify_all()

    def pass_through(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: number < self.limit, 60), "the gate stayed shut"


def pace(gate: Gate, ahead: int, seed: int) -> Callable[[], None]:
    """For a device that trains round after round, `ahead` rounds before the others."""
    numbers, moments = iter(range(ROUNDS)), random.Random(seed)

    def train() -> None:
        gate.pass_through(next(numbers) - ahead)
        threading.Event().wait(moments.uniform(0, 0.01))

    return train


def write_down(mosquitto: Mosquitto) -> None:
    """Makes mosquitto put what it has now on its disk; the file gets its name when it is whole."""
    database = mosquitto.folder / "mosquitto.db"
    database.unlink(missing_ok=True)
    os.kill(mosquitto.pid, signal.SIGUSR1)
    wait_until(database.exists, "mosquitto's database")


def test_the_fleet_goes_on(
    remembers: bool,
    mosquitto: Mosquitto,
    programs: Programs,
    watch: Callable[[], Watcher],
    scripted: Callable[..., ScriptedDevice],
    small_slice: SliceFile,
    topics: Topics,
) -> None:
    gate = Gate()
    options = ("--quorum", str(len(DEVICES)), "--deadline", "60", "--rounds", str(ROUNDS))
    aggregator = programs.aggregator("--slice", small_slice.path, *options, *UNBOUNDED)
    devices = [
        scripted(
            name,
            small_slice.slice,
            samples=10 + 7 * seed,
            seed=seed,
            pace=pace(gate, int(name == "early"), seed),
        )
        for seed, name in enumerate(DEVICES)
    ]
    for kill in range(KILLS):
        written, killed = APART * kill + 3, APART * (kill + 1)
        gate.open_until(written)
        aggregator.wait_for("accepted", device="early", round=written)
        aggregator.send(signal.SIGSTOP)
        listener = watch()
        gate.open_until(written + 1)
        for name in DEVICES[1:]:
            listener.wait_for(Update, topics.update(name), in_round(written))
        if remembers:
            write_down(mosquitto)
        aggregator.send(signal.SIGCONT)
        gate.open_until(killed)
        aggregator.wait_for("accepted", device="early", round=killed)
        assert aggregator.history("merged")[-1]["round"] == killed
        connections = len(aggregator.history("connected"))
        mosquitto.kill()
        mosquitto.start()

        def is_back(before: int = connections) -> bool:
            return len(aggregator.history("connected")) > before

        wait_until(is_back, "the aggregator's way back to the broker")
        # A stranger who comes now is told everything, though nobody has trained since.
        stranger = watch()
        state = stranger.wait_for(
            AggregatorState, topics.aggregator_state, lambda s: s.status == "online"
        )
        shared = stranger.wait_for(Shared, topics.shared, in_round(killed))
        assert (state.run, shared.last) == (shared.run, False)
    gate.open_until(ROUNDS)
    for device in devices:
        device.finish()
    assert aggregator.exit_code() == 0
    final = watch().wait_for(Shared, topics.shared)

    assert (final.round, final.last) == (ROUNDS, True)
    for device in devices:
        assert [update.round for update in device.updates] == list(range(ROUNDS))
    made: list[Update] = [update for device in devices for update in device.updates]
    assert_same(final.tensors, replay(small_slice.start, made))
    accepted = [(e["device"], e["round"]) for e in aggregator.history("accepted")]
    assert sorted(accepted) == sorted((u.device, u.round) for u in made)
    late = aggregator.history("refused")
    assert all(event["reason"] == Reason.LATE for event in late)
    if remembers:  # what was in the queue when mosquitto wrote it down has come again
        for name in DEVICES[1:]:
            assert sum(event["device"] == name for event in late) >= KILLS
