"""An observer of the real aggregator, and its history over restarts."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.metrics import metrics_text
from broker.protocol.messages import SMALL, DeviceState, to_bytes
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker
from tests.harness.aggregators import DEVICES, SLICE, TOPICS, Life, Plan, Unhurried
from tests.harness.waiting import wait_until
from toolkit.errors import ObserverError
from toolkit.observing.history import History
from toolkit.observing.observer import Observer, in_background
from toolkit.observing.status import Activity


@contextlib.contextmanager
def watching(broker: MemoryBroker, history: History, now: float = 1000.0) -> Iterator[Observer]:
    client = Unhurried(broker, client_id="observer", subscriptions=TOPICS.of_observer())
    channel = Channel(client, limit=SMALL, held_limit=SMALL)
    with contextlib.closing(history), contextlib.closing(channel):
        yield Observer(TOPICS, channel, history, clock=lambda: now)


def look_at_all(observer: Observer) -> None:
    while observer.look(0.0):
        pass


def say(broker: MemoryBroker, topic: str, payload: bytes) -> None:
    with contextlib.closing(Unhurried(broker, client_id="somebody")) as client:
        client.publish(topic, payload, retain=True)


def trained(broker: MemoryBroker, device: str, round: int, accuracy: float) -> None:
    text = metrics_text({"device_round": round, "device_accuracy": accuracy})
    say(broker, TOPICS.metrics(device), text.encode())


def test_rounds_of_a_real_aggregator_are_seen(tmp_path: Path) -> None:
    plan = Plan("sync", (DEVICES, 2, 1, DEVICES))
    with Life(plan, tmp_path / "state") as life:
        broker = life._memory
        say(broker, TOPICS.state("pi-0"), to_bytes(DeviceState.birth("pi-0", SLICE, {})))
        with watching(broker, History()) as observer:
            life.send_all()
            life.aggregator.stop()
            life.aggregator.run()  # says goodbye
            look_at_all(observer)
            fleet = observer.status
    assert (fleet.run, fleet.round, fleet.aggregator_status) == ("run-1", 3, "offline")
    assert [(r.number, r.devices, r.late) for r in fleet.rounds] == [
        (1, DEVICES, ()),
        (2, DEVICES, ()),
        (3, DEVICES, ()),
    ]
    assert list(observer.rounds) == [1, 2, 3]
    assert {name: device.accepted for name, device in fleet.devices.items()} == {
        "pi-0": 3,
        "pi-1": 3,
        "pi-2": 3,
    }
    assert fleet.doing("pi-0").why == "the fleet has no aggregator"
    assert fleet.unreadable == 0


def test_an_observer_that_starts_again_knows_what_was_before(tmp_path: Path) -> None:
    plan, file = Plan("sync", (DEVICES,)), tmp_path / "history"
    with Life(plan, tmp_path / "state") as life:
        broker = life._memory
        life.send_all()
        with watching(broker, History(file)) as observer:
            say(broker, TOPICS.state("pi-0"), to_bytes(DeviceState.birth("pi-0", SLICE, {})))
            for number in range(5):
                trained(broker, "pi-0", number, 0.1 * number)
                look_at_all(observer)
            say(broker, TOPICS.state("pi-0"), to_bytes(DeviceState(device="pi-0", online=False)))
            look_at_all(observer)
        with watching(broker, History(file), now=2000.0) as observer:
            trained(broker, "pi-0", 5, 0.7)
            look_at_all(observer)
            device = observer.status.devices["pi-0"]
            points = list(observer.curve(device).points)
            found = observer.status.doing("pi-0")
    assert points == [(n, pytest.approx(0.1 * n)) for n in range(5)] + [(5, 0.7)]
    assert (found.activity, found.since_ms) == (Activity.OFFLINE, 1_000_000)


def test_a_history_of_a_thousand_rounds_opens_soon(tmp_path: Path) -> None:
    file = tmp_path / "history"
    with contextlib.closing(History(file)) as history:
        rows = [
            ("run", f"pi-{d}", "accuracy", r, r / 1000, r) for d in range(20) for r in range(1000)
        ]
        history._base.executemany("INSERT INTO point VALUES (?, ?, ?, ?, ?, ?)", rows)
    begin = time.process_time()
    with contextlib.closing(History(file)) as history:
        curves = history.curves("run")
    assert time.process_time() - begin < 2.0
    assert len(curves) == 20
    assert curves["pi-3", "accuracy"].points[-1] == (999, 0.999)


@pytest.mark.parametrize("number", ["inf", "nan", "-inf", "1e300", "-1e300"])
def test_metrics_of_one_device_stop_no_observer(tmp_path: Path, number: str) -> None:
    with Life(Plan("sync", (DEVICES,)), tmp_path / "state") as life:
        broker = life._memory
        life.send_all()
        with watching(broker, History()) as observer:
            text = f"stemshare_device_round {number}\nstemshare_device_accuracy 0.5\n"
            say(broker, TOPICS.metrics("pi-0"), text.encode())
            say(
                broker,
                TOPICS.aggregator_metrics,
                f'stemshare_refused{{reason="late"}} {number}\n'.encode(),
            )
            trained(broker, "pi-1", 3, 0.5)
            look_at_all(observer)
            bad, good = (observer.status.devices[name] for name in ("pi-0", "pi-1"))
            assert (bad.trained_round, bad.score) == (-1, 0.5)
            assert list(observer.curve(good).points) == [(3, 0.5)]
            assert (observer.status.refused, observer.status.unreadable) == ({}, 0)


def test_an_observer_in_the_background_says_why_it_ended() -> None:
    class Broken(Observer):
        def look(self, timeout: float) -> bool:
            raise KeyError("round")

    with watching(MemoryBroker(), History()) as whole:
        observer = Broken(TOPICS, whole._channel, whole.history, clock=time.time)
        observer.linked = True
        said: list[str] = []
        with in_background(observer, said.append):
            wait_until(lambda: bool(said), "the observer's last words")
    assert (said, observer.linked) == (["the observer failed (KeyError: 'round')."], False)


@pytest.mark.parametrize("content", ["text", "other tables"])
def test_a_file_that_is_no_history_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    file = tmp_path / "file"
    if content == "text":
        file.write_text("my diary, of which nothing is to be lost\n" * 50)
    else:
        with contextlib.closing(sqlite3.connect(file)) as base:
            base.execute("CREATE TABLE mine (x)")
            base.commit()
    before = file.read_bytes()
    with pytest.raises(ObserverError, match=r"history"):
        History(file)
    assert file.read_bytes() == before
