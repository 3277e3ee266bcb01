"""Samples and their labels, framed as the examples and targets that a bundle takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from firmware_sim.errors import SourceError
from firmware_sim.sources.decoding.windows import LabelOf, Window, Windows
from firmware_sim.sources.labels import ClassNames, number_of
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import WindowSettings
from firmware_sim.sources.source import Malformed, Observation
from firmware_sim.tensor_spec import Array

NO_LABEL = np.nan


class Framing:
    """How long a window is, how many channels it has, and what its target is."""

    def __init__(self, settings: WindowSettings, request: Request, channels: int | None) -> None:
        """`channels` is the number that the settings name; None takes what fills the input."""
        shape = request.x.shape
        size = math.prod(shape)
        one_column = len(shape) == 1 and channels == 1
        self.window = settings.window or (shape[0] if len(shape) > 1 or one_column else 1)
        self.channels = channels or size // self.window
        if self.window * self.channels != size:
            raise SourceError(
                f"the bundle takes {request.x}; a window of {self.window} samples of "
                f"{self.channels} channels does not fill it."
            )
        self._settings = settings
        self._x = request.x
        self._y = request.y
        self._label_of: LabelOf = settings.label_of
        self.targets = 0
        if request.y is not None:
            if request.outputs is not None and request.y.shape == (self.window,):
                self._label_of = "each"
            self.targets = math.prod(request.y.shape)
            if self._label_of == "each":
                self.targets = max(1, self.targets // self.window)
            if self.targets * (self.window if self._label_of == "each" else 1) != math.prod(
                request.y.shape
            ):
                raise SourceError(
                    f"the bundle takes {request.y} as a target; labels of each of "
                    f"{self.window} samples do not fill it."
                )
        self.names: ClassNames | None = None
        if request.outputs is not None:
            self.names = ClassNames(
                settings.classes,
                outputs=request.outputs,
                file=request.classes_file,
                alone=request.alone,
            )

    def check_labels(self, named: Sequence[str]) -> None:
        """Raises `SourceError` unless the settings name none, or as many as a target has."""
        if self.targets and named and len(named) != self.targets:
            raise SourceError(
                f"the settings name {len(named)} labels ({', '.join(named)}); "
                f"the bundle takes {self.targets}."
            )

    def windows(self) -> Windows:
        """Returns an empty ring, for one sensor."""
        return Windows(
            self.window,
            self._settings.hop or self.window,
            self.channels,
            targets=max(1, self.targets),
            missing=self._settings.missing,
            label_of=self._label_of,
        )

    def label(self, values: Sequence[Any]) -> Array | float:
        """Returns the label of one sample as numbers, NaN if it has none; raises `NoLabel`."""
        if not self.targets or not values or all(value is None for value in values):
            return NO_LABEL
        if self.names is not None:
            return float(self.names.number(values[0]))
        return np.array([number_of(value) for value in values])

    def target(self, values: Sequence[Any]) -> Any:
        """Returns the target of an example that has these labels, or None; raises `NoLabel`."""
        found = self.label(values)
        return None if np.isnan(found).any() else self._target(np.atleast_1d(found))

    def observation(self, window: Window, key: str = "") -> Observation | Malformed:
        if window.missing:
            return Malformed(f"a window lacks {window.missing} values.")
        x = window.x.reshape(self._x.shape)
        if self._x.dtype.kind in "iu":
            limits = np.iinfo(self._x.dtype)
            if (x < limits.min).any() or (x > limits.max).any() or (x % 1 != 0).any():
                return Malformed(f"a window has numbers that are no {self._x.dtype}.")
        elif np.abs(x).max() > np.finfo(self._x.dtype).max:
            return Malformed("a window has numbers that are too large.")
        y = None if window.y is None or not self.targets else self._target(window.y)
        return Observation(x.astype(self._x.dtype), y, key)

    def _target(self, label: Array) -> Any:
        assert self._y is not None
        if self.names is not None and self._y.shape == ():
            return int(label[0])
        return label.astype(self._y.dtype).reshape(self._y.shape)
