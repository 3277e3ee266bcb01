"""A JSON object of a bundle whose values are taken out one by one, and checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.errors import BundleError
from firmware_sim.tensor_spec import TensorSpec

LARGEST_NUMBER = 3e38  # that float32 holds


class JsonObject:
    """A JSON object whose values are taken out one by one, and checked on the way."""

    def __init__(self, file: Path, place: str, table: Mapping[str, Any]) -> None:
        self.file = file
        self.place = place  # of the object in the file, as "branch."
        self.table = table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def items(self) -> Iterator[tuple[str, JsonObject]]:
        return ((name, self.object(name)) for name in self.table)

    def text(self, key: str) -> str:
        return str(self._take(key, "a text", lambda value: isinstance(value, str)))

    def flag(self, key: str) -> bool:
        return bool(self._take(key, "true or false", lambda value: isinstance(value, bool)))

    def count(self, key: str) -> int:
        return int(self._take(key, "a whole number, 0 or more", is_count))

    def number(self, key: str) -> float:
        found: float = self._take(key, "a number", lambda value: type(value) in (int, float))
        return found

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(self._take(key, "a list of finite numbers", _are_numbers))

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._take(key, "a list of whole numbers", _is_shape))

    def object(self, key: str) -> JsonObject:
        found = self._take(key, "an object", lambda value: isinstance(value, dict))
        return JsonObject(self.file, f"{self.place}{key}.", found)

    def objects(self, key: str) -> list[JsonObject]:
        found = self._take(key, "a list of objects", _is_list_of_objects)
        return [
            JsonObject(self.file, f"{self.place}{key}[{number}].", entry)
            for number, entry in enumerate(found)
        ]

    def spec(self, key: str) -> TensorSpec:
        dtype, shape = self._take(key, "the type and shape of an array", _is_spec)
        return TensorSpec(tuple(shape), np.dtype(dtype))

    def _take(self, key: str, expected: str, is_right: Callable[[Any], bool]) -> Any:
        if key not in self.table:
            raise BundleError(f"{self.file} lacks {self.place}{key}.")
        value = self.table[key]
        if not is_right(value):
            raise BundleError(f"{self.file} must have {expected} as {self.place}{key}.")
        return value


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(number) in (int, float) and abs(number) < LARGEST_NUMBER for number in value
    )


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _is_spec(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 2 and _is_shape(value[1])):
        return False
    try:
        return isinstance(value[0], str) and bool(np.dtype(value[0]).name)
    except TypeError:
        return False
