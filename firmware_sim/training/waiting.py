"""Waits between two steps of training while there is a reason to, and says so.

Training rests after each step of t seconds, so that it takes the part d of the time:

    rest = t · (1 - d) / d

and it waits while one of its gates has a reason: the pace of the profile (`sensors.py`), or a task
that lacks examples. Everything else goes on meanwhile: `idle` is called every `SLICE` seconds,
looks after the fleet and the watchdog, and raises `Stopped` when the device is to stop.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.log import Log
from profiles.errors import StemshareError

SLICE = 0.2  # seconds; how long `idle` is called for
LONG = 1.0  # seconds of waiting after which a checkpoint is written, and others are told
TELL_SECONDS = 30.0  # at least between two reports of one cause whose text changes


@dataclass(frozen=True)
class Waiting:
    """Why no step is taken at the moment."""

    cause: str  # one word, under which the seconds are counted
    text: str  # for people


Gate = Callable[[], Waiting | None]  # returns why the next step may not begin yet


def lacking(waits_for: Callable[[], str]) -> Gate:
    """Returns the gate of a task that says what it lacks."""
    return lambda: Waiting("examples", text) if (text := waits_for()) else None


def rest_seconds(step_seconds: float, duty_cycle: float) -> float:
    """Returns how long to rest after a step, for training to take that part of the time."""
    return step_seconds * (1 - duty_cycle) / duty_cycle


class Waits:
    """Says whether a step may begin, and counts the seconds until then by cause."""

    def __init__(
        self,
        log: Log,
        *,
        duty_cycle: float = 1.0,
        gates: Sequence[Gate] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)  # waited so far, by cause
        self.told: Waiting | None = None  # the reason, once the wait is a long one
        self.tell: Callable[[], None] = lambda: None  # called whenever `told` has changed
        self._log = log
        self._duty_cycle = duty_cycle
        self.gates = gates
        self._clock = clock
        self._rest_until = 0.0
        self._reason: Waiting | None = None  # when the gates were asked last
        self._asked_at = self._since = self._told_at = 0.0

    def may_begin(self) -> bool:
        """Asks the gates whether a step may begin; must be asked often while it may not."""
        reason = next(filter(None, (gate() for gate in self.gates)), None)
        if reason is None and self._reason is None:
            return True
        now = self._clock()
        if self._reason is None:
            self._since = now
        else:
            self.seconds[self._reason.cause] += now - self._asked_at
        self._reason, self._asked_at = reason, now
        if reason is None:
            self._end(now)
        elif now - self._since >= LONG and self._is_news(reason, now):
            self._log.event("waiting", cause=reason.cause, reason=reason.text)
            self._told_at = now
            self._change(reason)
        return reason is None

    def before_step(self, idle: Callable[[float], object], save: Callable[[], None]) -> None:
        """Returns when a step may begin; `save` is called before a long wait, and at an error."""
        saved = False
        try:
            self._rest(idle)
            while not self.may_begin():
                if self.told and not saved:
                    save()
                    saved = True
                idle(SLICE)
        except StemshareError:
            if not saved:
                save()
            raise

    def step(self, losses: Iterator[float]) -> float:
        """Takes a step and returns its loss; the rest after it begins."""
        if self._duty_cycle == 1:
            return next(losses)
        begin = self._clock()
        loss = next(losses)
        end = self._clock()
        self._rest_until = end + rest_seconds(end - begin, self._duty_cycle)
        return loss

    def _rest(self, idle: Callable[[float], object]) -> None:
        while self._duty_cycle < 1 and (left := self._rest_until - (now := self._clock())) > 0:
            try:
                idle(min(SLICE, left))
            finally:
                self.seconds["duty_cycle"] += self._clock() - now

    def _is_news(self, reason: Waiting, now: float) -> bool:
        if self.told is None or self.told.cause != reason.cause:
            return True
        return self.told != reason and now - self._told_at >= TELL_SECONDS

    def _end(self, now: float) -> None:
        if self.told is not None:
            seconds = round(now - self._since, 1)
            self._log.event("continued", cause=self.told.cause, seconds=seconds)
            self._change(None)

    def _change(self, told: Waiting | None) -> None:
        self.told = told
        self.tell()
