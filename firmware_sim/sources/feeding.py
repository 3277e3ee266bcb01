"""Moves what a source yields to where examples are taken, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker.log import Log
from firmware_sim.errors import SourceError, WrongInput
from firmware_sim.sources.source import LateLabel, Malformed, Observation, Source
from profiles.errors import StemshareError
from profiles.text import printable

SILENT_SECONDS = 60.0  # after which a source that yields nothing is reported
_END_SECONDS = 5.0  # in which a closed source must have ended


class Taker(Protocol):
    """Where examples are taken; an application calls the same two."""

    def observe(self, x: object, y: object = None, *, key: str = "") -> str: ...

    def label(self, key: str, y: object) -> bool: ...


@dataclass
class Fed:
    """What has come so far; mutable."""

    examples: int = 0
    labels: int = 0
    unknown_labels: int = 0  # of examples that are not there (any more)
    malformed: int = 0


class Feeding:
    """A source that is being read; `check` raises what ended it before its time."""

    def __init__(
        self,
        source: Source,
        taker: Taker,
        log: Log,
        *,
        silent_seconds: float = SILENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fed = Fed()
        self._source = source
        self._taker = taker
        self._log = log
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._closing = False
        self._error: StemshareError | None = None
        self._thread = threading.Thread(target=self._run, name="feeding", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._closing = True
        self._source.close()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            self._feed()
        except StemshareError as error:
            self._error = error
        except Exception as error:  # of a source that somebody else wrote
            said = printable(f"{type(error).__name__}: {error}", 300)
            self._error = SourceError(f"the source of examples failed ({said}).")
        if self._error is not None and not self._closing:
            self._log.event("source_failed", reason=str(self._error))
        elif not self._closing:
            self._log.event("source_ended", **vars(self.fed))

    def _feed(self) -> None:
        heard, reported = self._clock(), False
        for event in self._source.events():
            if self._closing:
                return
            now = self._clock()
            if event is not None:
                heard, reported = now, False
                self._take(event)
            elif now - heard > self._silent_seconds and not reported:
                self._log.event("source_silent", seconds=round(now - heard))
                reported = True

    def _take(self, event: Observation | LateLabel | Malformed) -> None:
        try:
            match event:
                case Observation(x, y, key):
                    self._taker.observe(x, y, key=key)
                    self.fed.examples += 1
                case LateLabel(key, y):
                    if self._taker.label(key, y):
                        self.fed.labels += 1
                    else:
                        self.fed.unknown_labels += 1
                case Malformed(reason):
                    self._count_malformed(reason)
        except WrongInput as error:
            self._count_malformed(str(error))

    def _count_malformed(self, reason: str) -> None:
        """The log gets the first, the tenth, the hundredth and so on."""
        self.fed.malformed += 1
        if set(str(self.fed.malformed)[1:]) <= {"0"} and str(self.fed.malformed)[0] == "1":
            self._log.event("malformed", count=self.fed.malformed, reason=reason)
