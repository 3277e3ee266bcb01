"""One message of a sensor as samples: JSON, numbers as text, or an array of numbers.

A path names a place in JSON: the keys of objects and the places in lists, with dots between them,
as `accel.x` or `values.0`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firmware_sim.sources.labels import number_in
from firmware_sim.sources.settings import MqttSettings
from firmware_sim.tensor_spec import Array
from profiles.text import printable

ROOM = 16 * 2**10  # bytes of a message beside its numbers
NUMBER_BYTES = 64  # most that a number takes, with what stands around it
LONGEST_KEY = 200  # characters
LABEL = "label"  # the usual place of a label
_BETWEEN = re.compile(r"[\s,;]+")


class BadMessage(ValueError):
    """A message that is no sample and no label; the text is one sentence."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What one message says."""

    samples: Array  # float64[count, channels]; NaN is missing
    labels: list[Any]  # as they were written; None is missing
    key: str


class Messages:
    """Reads messages of one form."""

    def __init__(self, settings: MqttSettings, *, window: int, channels: int) -> None:
        self._settings = settings
        self._count = window if settings.whole_windows else 1
        self._channels = channels
        self.largest = ROOM + NUMBER_BYTES * self._count * channels

    def read(self, payload: bytes) -> Reading:
        """Returns the samples of a message; raises `BadMessage`."""
        self._check_size(payload)
        if self._settings.payload == "json":
            document = _document(payload)
            labels = [look_up(document, path) for path in self._settings.labels or (LABEL,)]
            return Reading(self._samples(document), labels, key_of(document, self._settings.key))
        if self._settings.payload == "text":
            return Reading(self._shaped(_numbers_in(payload)), [], "")
        dtype = np.dtype(self._settings.payload).newbyteorder("<")
        if len(payload) % dtype.itemsize:
            raise BadMessage(f"a message of {len(payload)} bytes is no array of {dtype.name}.")
        return Reading(self._shaped(np.frombuffer(payload, dtype).astype(np.float64)), [], "")

    def read_label(self, payload: bytes) -> tuple[str, list[Any]]:
        """Returns key and label of a message with a label; raises `BadMessage`."""
        self._check_size(payload)
        document = _document(payload)
        key = key_of(document, self._settings.label_key or self._settings.key)
        if not key:
            raise BadMessage("a message with a label does not say whose it is.")
        return key, [look_up(document, path) for path in self._settings.label_fields or (LABEL,)]

    def _check_size(self, payload: bytes) -> None:
        if len(payload) > self.largest:
            raise BadMessage(
                f"a message has {len(payload)} bytes; at most {self.largest} are read."
            )

    def _samples(self, document: Any) -> Array:
        paths = self._settings.fields
        if not paths:
            if isinstance(document, dict):
                raise BadMessage("a message is an object: name the fields in the settings.")
            return self._shaped(_flat(document))
        found = [_flat(look_up(document, path)) for path in paths]
        if len(found) == 1:
            return self._shaped(found[0])
        for path, numbers in zip(paths, found, strict=True):
            if len(numbers) != self._count:
                raise BadMessage(
                    f"a message has {len(numbers)} numbers at {printable(path, 60)} "
                    f"instead of {self._count}."
                )
        return np.stack(found, axis=1)

    def _shaped(self, numbers: Array) -> Array:
        if len(numbers) != self._count * self._channels:
            raise BadMessage(
                f"a message has {len(numbers)} numbers instead of {self._count * self._channels}."
            )
        if np.isinf(numbers).any():
            raise BadMessage("a message has numbers that are not finite.")
        return numbers.reshape(self._count, self._channels)


def look_up(document: Any, path: str) -> Any:
    """Returns what is at a path in a JSON document, or None."""
    for part in path.split("."):
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isascii() and part.isdigit() and len(part) < 10:
            document = document[int(part)] if int(part) < len(document) else None
        else:
            return None
    return document


def key_of(document: Any, path: str) -> str:
    """Returns the key at a path, as text; an empty one if there is none."""
    found = look_up(document, path) if path else None
    if not isinstance(found, str | int) or isinstance(found, bool):
        return ""
    text = str(found)
    if len(text) > LONGEST_KEY:
        raise BadMessage(f"a key has more than {LONGEST_KEY} characters.")
    return text


def _document(payload: bytes) -> Any:
    try:
        return json.loads(payload.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadMessage("a message is not JSON.") from None


def _numbers_in(payload: bytes) -> Array:
    try:
        cells = _BETWEEN.split(payload.decode("utf-8").strip())
    except UnicodeDecodeError:
        raise BadMessage("a message is not text.") from None
    return _flat(cells)


def _flat(value: Any) -> Array:
    """Returns the numbers of a value, of a list, or of lists in lists; null is missing."""
    found: list[float] = []
    waiting: list[Any] = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, Sequence) and not isinstance(entry, str):
            waiting.extend(reversed(entry))
        else:
            found.append(_number(entry))
    return np.array(found, np.float64)


def _number(entry: Any) -> float:
    if entry is None:
        return np.nan
    number = number_in(entry) if isinstance(entry, str) else entry
    try:
        if isinstance(number, int | float) and not isinstance(number, bool):
            return float(number)
    except OverflowError:
        pass
    raise BadMessage(f"{printable(repr(entry), 60)} in a message is not a number.")
