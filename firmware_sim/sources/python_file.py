"""Python's own generators as sources: a function in a file, or in an installed package.

It yields `x`, `(x, y)`, or dicts: {"x": …, "y": …, "key": …}, of which only x is needed, and later
{"key": …, "y": …} for the label of an example that came before. None means that nothing has come.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from firmware_sim.errors import SourceError
from firmware_sim.sources.source import LateLabel, Malformed, Observation, Source
from profiles.text import printable

_AHEAD = 16  # items that a generator may be ahead of the device
_LOOK_SECONDS = 0.5
_KEYS = {"x", "y", "key"}
Event = Observation | LateLabel | Malformed | None


def function_in_file(file: Path, name: str) -> Callable[[], Any]:
    """Runs a Python file and returns the function of it that is called `name`."""
    if not file.is_file():
        raise SourceError(f"there is no file {file} to take {name} of.")
    spec = importlib.util.spec_from_file_location(f"source_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise SourceError(f"{file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # of a file that somebody else wrote
        said = printable(f"{type(error).__name__}: {error}", 300)
        raise SourceError(f"{file} cannot be run ({said}).") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise SourceError(f"{file} has no function {name}.")
    made: Callable[[], Any] = found
    return made


def source_of(function: Callable[[], Any], name: str) -> Source:
    """Returns what a function makes, if it is a source; otherwise a source of what it yields."""
    made = function()
    if callable(getattr(made, "events", None)) and callable(getattr(made, "close", None)):
        source: Source = made
        return source
    if not isinstance(made, Iterable):
        raise SourceError(f"{name} must yield examples; it returned {type(made).__name__}.")
    return GeneratorSource(made)


class GeneratorSource:
    """Reads an iterable in a thread of its own, since it may wait for its sensor for ever."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._queue: queue.Queue[Event | BaseException] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._ended = threading.Event()

    def events(self) -> Iterator[Event]:
        threading.Thread(target=self._read, name="generator", daemon=True).start()
        while not self._closed.is_set():
            ended = self._ended.is_set()
            try:
                event = self._queue.get(timeout=0.0 if ended else _LOOK_SECONDS)
            except queue.Empty:
                if ended:
                    return
                event = None
            if isinstance(event, BaseException):
                raise event
            yield event

    def close(self) -> None:
        self._closed.set()

    def _read(self) -> None:
        try:
            for item in self._items:
                if not self._put(event_of(item)):
                    return
        except Exception as error:  # it is raised where events are taken
            self._put(error)
        self._ended.set()

    def _put(self, event: Event | BaseException) -> bool:
        """Waits for room; returns False if the source was closed meanwhile."""
        while not self._closed.is_set():
            try:
                self._queue.put(event, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def event_of(item: Any) -> Event:
    """Returns what a generator's item means."""
    if item is None or isinstance(item, Observation | LateLabel | Malformed):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return Observation(item[0], item[1])
    if not isinstance(item, dict):
        return Observation(item)
    if unknown := sorted(str(key) for key in item.keys() - _KEYS):
        return Malformed(printable(f"a dict has the unknown key {unknown[0]!r}.", 200))
    key = str(item.get("key", ""))
    if "x" in item:
        return Observation(item["x"], item.get("y"), key)
    if key and "y" in item:
        return LateLabel(key, item["y"])
    return Malformed("a dict has neither x, nor the key and the y of an earlier one.")
