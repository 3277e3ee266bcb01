"""Training rests and waits between steps: for how long, what is counted, and who is told."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from broker.log import Log
from firmware_sim.errors import Stopped
from firmware_sim.training.waiting import (
    LONG,
    SLICE,
    TELL_SECONDS,
    Waiting,
    Waits,
    lacking,
    rest_seconds,
)

HOT = Waiting("temperature", "81 °C")


@dataclass
class World:
    """A clock that only `idle` and steps move; `why` is what the gate says at a time."""

    why: Callable[[float], Waiting | None] = lambda now: None
    duty_cycle: float = 1.0
    step_seconds: float = 0.0
    now: float = 100.0
    idled: list[float] = field(default_factory=list)
    done: list[tuple[float, str]] = field(default_factory=list)
    log: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.waits = Waits(
            Log(self.log, as_json=True),
            duty_cycle=self.duty_cycle,
            gates=[lambda: self.why(self.now)],
            clock=lambda: self.now,
        )
        self.waits.tell = lambda: self.note(self.waits.told.text if self.waits.told else "on")

    def note(self, what: str) -> None:
        self.done.append((round(self.now, 3), what))

    def idle(self, seconds: float) -> None:
        assert 0 < seconds <= SLICE
        self.idled.append(seconds)
        self.now += seconds

    def losses(self) -> Iterator[float]:
        while True:
            self.now += self.step_seconds
            yield 0.5

    def begin(self) -> None:
        self.waits.before_step(self.idle, lambda: self.note("save"))

    def events(self) -> list[tuple[str, object]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [(line["event"], line.get("reason", line.get("seconds"))) for line in lines]


def until(end: float, waiting: Waiting = HOT) -> Callable[[float], Waiting | None]:
    return lambda now: waiting if now < end - 1e-6 else None


@pytest.mark.parametrize(("duty_cycle", "rest"), [(0.5, 2.0), (0.25, 6.0), (0.8, 0.5), (1.0, 0.0)])
def test_training_takes_its_part_of_the_time(duty_cycle: float, rest: float) -> None:
    assert rest_seconds(2.0, duty_cycle) == pytest.approx(rest)
    assert 2.0 / (2.0 + rest) == pytest.approx(duty_cycle)
    world = World(duty_cycle=duty_cycle, step_seconds=2.0)
    losses = world.losses()
    for _ in range(3):
        world.begin()
        assert world.waits.step(losses) == 0.5
    assert world.now == pytest.approx(100 + 3 * 2.0 + 2 * rest)
    assert world.waits.seconds["duty_cycle"] == pytest.approx(2 * rest)
    assert not world.done, "a rest is part of training, not a pause of it"


def test_what_passes_between_rounds_counts_as_rest() -> None:
    world = World(duty_cycle=0.5, step_seconds=2.0)
    world.waits.step(world.losses())
    world.now += 1.5  # sends, waits for the fleet
    world.begin()
    assert sum(world.idled) == pytest.approx(0.5)


def test_a_short_wait_is_counted_and_nobody_is_told() -> None:
    world = World(until(100 + LONG - SLICE))
    world.begin()
    assert world.waits.seconds == pytest.approx({"temperature": LONG - SLICE})
    assert (world.done, world.events()) == ([], [])


def test_a_long_wait_is_saved_and_told_once_and_its_end_too() -> None:
    world = World(until(110.0))
    world.begin()
    assert world.done == [(101.0, "81 °C"), (101.0, "save"), (110.0, "on")]
    assert world.events() == [("waiting", "81 °C"), ("continued", 10.0)]
    assert world.waits.seconds == pytest.approx({"temperature": 10.0})
    world.begin()
    assert len(world.done) == 3


def test_another_cause_is_told_at_once_and_another_text_after_a_while() -> None:
    """Seconds are counted for each cause."""

    def why(now: float) -> Waiting | None:
        if now < 139.9:
            return Waiting("examples", f"{now:.0f} of 150")
        return until(145.0)(now)

    world = World(why)
    world.begin()
    assert world.done == [
        (101.0, "101 of 150"),
        (101.0, "save"),
        (101.0 + TELL_SECONDS, "131 of 150"),
        (140.0, "81 °C"),
        (145.0, "on"),
    ]
    assert world.waits.seconds == pytest.approx({"examples": 40.0, "temperature": 5.0})


@pytest.mark.parametrize("after", [0.5, 3.0])
@pytest.mark.parametrize("duty_cycle", [1.0, 0.01])
def test_a_stop_ends_a_wait_or_a_rest_after_a_checkpoint(after: float, duty_cycle: float) -> None:
    world = World(until(1000.0), duty_cycle=duty_cycle, step_seconds=1.0)
    world.waits.step(world.losses())
    stop = world.now + after

    def idle(seconds: float) -> None:
        if world.now >= stop:
            raise Stopped("stopped")
        world.idle(seconds)

    with pytest.raises(Stopped):
        world.waits.before_step(idle, lambda: world.note("save"))
    assert world.now - stop < SLICE
    assert [what for _, what in world.done if what == "save"] == ["save"]


def test_a_task_that_lacks_nothing_is_no_reason() -> None:
    assert lacking(lambda: "")() is None
    assert lacking(lambda: "12 of 32")() == Waiting("examples", "12 of 32")
