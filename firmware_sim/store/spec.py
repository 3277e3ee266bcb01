"""What one example is, and its bytes in the store."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from firmware_sim.errors import WrongInput
from firmware_sim.tensor_spec import Array, TensorSpec

LARGEST = 1e15  # of a value: its square is far within float32


@dataclass(frozen=True)
class ExampleSpec:
    """An input and its target; without `y` the target is the input itself.

    Whole numbers as `y` are classes: one, or one for each position, -1 where none counts.
    """

    x: TensorSpec
    y: TensorSpec | None
    classes: int = 0  # their number, if it is known

    @property
    def is_one_class(self) -> bool:
        return self.y is not None and self.y.dtype.kind == "i" and not self.y.shape

    @cached_property
    def size(self) -> int:
        """Bytes of one example."""
        return self._x_bytes + (_bytes(self.y) if self.y else 0)

    @cached_property
    def _x_bytes(self) -> int:
        return _bytes(self.x)

    def pack(self, x: Any, y: Any = None) -> bytes:
        """Returns the bytes of an example; raises `WrongInput` if it is none. No `y`: zeros."""
        data = self.as_x(x).tobytes()
        if self.y is None:
            return data
        return data + (bytes(_bytes(self.y)) if y is None else self.as_y(y).tobytes())

    def with_label(self, data: bytes, y: Any) -> bytes:
        """Returns the bytes of the same example with this target."""
        return data[: self._x_bytes] + self.as_y(y).tobytes()

    def unpack(self, rows: list[bytes]) -> tuple[Array, Array]:
        """Returns the inputs and the targets of examples, or the inputs twice."""
        table = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), self.size)
        x = _array(table[:, : self._x_bytes], self.x)
        return x, (x if self.y is None else _array(table[:, self._x_bytes :], self.y))

    def as_x(self, value: Any) -> Array:
        return _checked("example", value, self.x)

    def as_y(self, value: Any) -> Array:
        """Returns the target as the model takes it; raises `WrongInput`."""
        if self.y is None:
            raise WrongInput("this branch learns its own input: its examples have no labels.")
        if type(value) is int and self.is_one_class and 0 <= value < self.classes:
            return np.array(value, self.y.dtype)  # by far the most frequent
        found = _checked("label", value, self.y)
        if self.y.dtype.kind == "i":
            least, most = -1 if self.y.shape else 0, (self.classes or 2**31) - 1
            if found.min() < least or found.max() > most:
                wrong = found.min() if found.min() < least else found.max()
                raise WrongInput(f"the label {wrong} is not a class from {least} to {most}.")
        return found

    def label_of(self, data: bytes) -> int:
        """Returns the class of a labelled example; 0 if the target is no class."""
        if not self.is_one_class or self.y is None:
            return 0
        return int(np.frombuffer(data[self._x_bytes :], self.y.dtype)[0])

    def to_json(self) -> str:
        tensors = {"x": self.x, **({"y": self.y} if self.y else {})}
        said = {name: [spec.dtype.name, list(spec.shape)] for name, spec in tensors.items()}
        return json.dumps({**said, "classes": self.classes})

    @classmethod
    def from_json(cls, text: str) -> ExampleSpec:
        said = json.loads(text)
        x, y = (
            TensorSpec(tuple(said[name][1]), np.dtype(said[name][0])) if name in said else None
            for name in ("x", "y")
        )
        assert x is not None
        return cls(x, y, said["classes"])

    def __str__(self) -> str:
        target = f"with {self.y} as labels" if self.y else "without labels"
        return f"{self.x} {target}" + (f", {self.classes} classes" if self.classes else "")


def _checked(what: str, value: Any, spec: TensorSpec) -> Array:
    try:
        given = np.asarray(value)
    except ValueError:
        raise WrongInput(f"the {what} is no array; the bundle takes {spec}.") from None
    if given.dtype.kind not in "biuf" or given.shape != spec.shape:
        raise WrongInput(
            f"the {what} is {given.dtype}{list(given.shape)}; the bundle takes {spec}."
        )
    found: Array = given if given.dtype == spec.dtype else _converted(given, spec.dtype)
    if spec.dtype.kind == "f" and found.size and not _is_measured(found):
        raise WrongInput(f"the {what} holds numbers that are not finite, or beyond {LARGEST:g}.")
    if spec.dtype.kind != "f" and found is not given and not np.array_equal(found, given):
        raise WrongInput(f"the {what} holds numbers that {spec.dtype} cannot hold.")
    return found


def _is_measured(values: Array) -> bool:
    """Returns whether no value is NaN or so large that a network computes no number from it."""
    return bool(values.min() >= -LARGEST and values.max() <= LARGEST)


def _converted(given: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return given.astype(dtype)


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _array(table: Array, spec: TensorSpec) -> Array:
    return np.ascontiguousarray(table).view(spec.dtype).reshape(len(table), *spec.shape)
