"""What a source yields reaches the store; what is wrong with it is counted, said, or raised."""

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.log import Log
from firmware_sim.errors import SourceError, WrongInput
from firmware_sim.sources.feeding import Feeding
from firmware_sim.sources.open_source import open_source
from firmware_sim.sources.python_file import GeneratorSource, event_of
from firmware_sim.sources.request import Request
from firmware_sim.sources.source import LateLabel, Malformed, Observation
from firmware_sim.tensor_spec import TensorSpec

REQUEST = Request(x=TensorSpec((3,), np.dtype(np.float32)))
SCRIPT = """
import time
def windows():
    yield [1.0]
    yield [2.0], 3
    yield None
    yield {"x": [4.0], "key": "late"}
    yield {"key": "late", "y": 1}
    yield {"key": "unknown", "y": 1}
    yield {"z": 1}
    yield ["wrong"]
def number():
    return 7
def broken():
    yield [1.0]
    raise OSError("the sensor is gone")
"""


class Taken:
    """Notes what it is given; refuses texts, and knows only what it has seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def observe(self, x: Any, y: Any = None, *, key: str = "") -> str:
        if isinstance(x[0], str):
            raise WrongInput("the example is no array.")
        self.seen.append(("observe", x, y, key))
        return key

    def label(self, key: str, y: Any) -> bool:
        self.seen.append(("label", key, y))
        return key != "unknown"


@pytest.fixture
def feed() -> Iterator[Callable[..., tuple[Feeding, Taken, io.StringIO]]]:
    made: list[Feeding] = []

    def start(source: Any, **options: Any) -> tuple[Feeding, Taken, io.StringIO]:
        taken, log = Taken(), io.StringIO()
        made.append(Feeding(source, taken, Log(log, as_json=True), **options))
        return made[-1], taken, log

    yield start
    for feeding in made:
        feeding.close()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "sensor.py").write_text(SCRIPT)
    return tmp_path / "sensor.py"


def wait(feeding: Feeding) -> None:
    feeding._thread.join(10.0)
    assert feeding.ended


def events(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_generator_in_a_file_feeds_the_store(script: Path, feed: Callable[..., Any]) -> None:
    feeding, taken, log = feed(open_source(f"{script}:windows", REQUEST))
    wait(feeding)
    assert taken.seen == [
        ("observe", [1.0], None, ""),
        ("observe", [2.0], 3, ""),
        ("observe", [4.0], None, "late"),
        ("label", "late", 1),
        ("label", "unknown", 1),
    ]
    counted = {"examples": 3, "labels": 1, "unknown_labels": 1, "malformed": 2}
    assert vars(feeding.fed) == counted
    said = events(log)
    assert [e["reason"] for e in said if e["event"] == "malformed"] == [
        "a dict has the unknown key 'z'."
    ]
    assert {k: said[-1][k] for k in ("event", *counted)} == {"event": "source_ended"} | counted
    feeding.check()


def test_a_source_that_fails_is_not_silent(script: Path, feed: Callable[..., Any]) -> None:
    feeding, taken, log = feed(open_source(f"{script}:broken", REQUEST))
    wait(feeding)
    assert len(taken.seen) == 1
    with pytest.raises(SourceError, match=r"failed .OSError: the sensor is gone"):
        feeding.check()
    assert [e["event"] for e in events(log)] == ["source_failed"]


def test_a_silent_source_is_reported_once_and_can_be_closed(feed: Callable[..., Any]) -> None:
    never, spoken = threading.Event(), threading.Event()

    def mute() -> Iterator[None]:
        never.wait()
        yield None

    class Clocked(GeneratorSource):
        def events(self) -> Iterator[Any]:
            for number, event in enumerate(super().events()):
                if number == 2:
                    spoken.set()
                yield event

    now = iter(range(0, 10**6, 61))
    feeding, _, log = feed(Clocked(mute()), clock=lambda: float(next(now)))
    assert spoken.wait(10.0)
    feeding.close()
    assert feeding.ended
    assert [(e["event"], e["seconds"]) for e in events(log)] == [("source_silent", 61)]
    never.set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{script}:number", "must yield examples; it returned int"),
        ("{script}:nothing", "has no function nothing"),
        ("{script}x.py:windows", "there is no file"),
        ("telepathy:now", "there is no source 'telepathy:now'"),
        ("nothing", "there is no source 'nothing'"),
    ],
)
def test_a_source_that_is_none_is_refused(script: Path, name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        open_source(name.format(script=script), REQUEST)


def test_a_file_that_cannot_be_run_is_refused(script: Path) -> None:
    script.write_text("1 / 0")
    with pytest.raises(SourceError, match=r"cannot be run .ZeroDivisionError"):
        open_source(f"{script}:windows", REQUEST)


def test_an_installed_package_offers_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gauge.py").write_text("def read():\n    yield [5.0], 1\n")
    info = tmp_path / "gauge-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gauge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stemshare.sources]\nfast = gauge:read\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    source = open_source("gauge:fast", REQUEST)
    (event,) = [event for event in source.events() if event is not None]
    assert isinstance(event, Observation) and (event.x, event.y) == ([5.0], 1)


def test_items_that_are_events_stay_what_they_are() -> None:
    for event in (Observation([1.0]), LateLabel("k", 1), Malformed("no.")):  # type: ignore[arg-type]
        assert event_of(event) is event
    assert isinstance(event_of({"y": 1}), Malformed)
