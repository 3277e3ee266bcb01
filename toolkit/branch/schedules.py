"""Learning rates that follow the step, with the formulas of Keras 3; t counts steps from zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class ExponentialDecay:
    """η₀ · rateᵗ′ with t′ = t / steps, rounded down if in stairs."""

    initial: float
    steps: float
    rate: float
    staircase: bool = False
    kind: str = "exponential decay"

    def at(self, step: tf.Tensor) -> tf.Tensor:
        return self.initial * tf.pow(self.rate, _part(step, self.steps, self.staircase))


@dataclass(frozen=True)
class InverseTimeDecay:
    """η₀ / (1 + rate · t′) with t′ = t / steps, rounded down if in stairs."""

    initial: float
    steps: float
    rate: float
    staircase: bool = False
    kind: str = "inverse time decay"

    def at(self, step: tf.Tensor) -> tf.Tensor:
        return self.initial / (1.0 + self.rate * _part(step, self.steps, self.staircase))


@dataclass(frozen=True)
class PolynomialDecay:
    """(η₀ - η₁) · (1 - min(t, steps) / steps)^power + η₁."""

    initial: float
    steps: float
    end: float
    power: float
    kind: str = "polynomial decay"

    def at(self, step: tf.Tensor) -> tf.Tensor:
        left = 1.0 - tf.minimum(step, self.steps) / self.steps
        return (self.initial - self.end) * tf.pow(left, self.power) + self.end


@dataclass(frozen=True)
class CosineDecay:
    """Rises from η₀ to `top` in `warm_up` steps, then falls to alpha · top in `steps` steps:
    top · ((1 - alpha) · ½(1 + cos(π · t′)) + alpha)."""

    initial: float
    steps: float
    alpha: float = 0.0
    top: float | None = None  # None: it begins at η₀, without a rise
    warm_up: float = 0.0
    kind: str = "cosine decay"

    def at(self, step: tf.Tensor) -> tf.Tensor:
        top, begin = (self.initial, 0.0) if self.top is None else (self.top, self.warm_up)
        done = tf.minimum(tf.maximum(step - begin, 0.0), self.steps) / self.steps
        falling = top * ((1.0 - self.alpha) * 0.5 * (1.0 + tf.cos(math.pi * done)) + self.alpha)
        if self.top is None or not self.warm_up:
            return falling
        rising = self.initial + (top - self.initial) * tf.minimum(step / self.warm_up, 1.0)
        return tf.where(step < self.warm_up, rising, falling)


@dataclass(frozen=True)
class PiecewiseConstant:
    """values[0] up to boundaries[0], then values[1] up to boundaries[1], and so on."""

    boundaries: tuple[float, ...]
    values: tuple[float, ...]
    kind: str = "piecewise constant"

    def at(self, step: tf.Tensor) -> tf.Tensor:
        rate = tf.constant(self.values[0])
        for boundary, before, after in zip(
            self.boundaries, self.values, self.values[1:], strict=False
        ):
            rate = rate + tf.cast(step > boundary, tf.float32) * (after - before)
        return rate


Schedule = ExponentialDecay | InverseTimeDecay | PolynomialDecay | CosineDecay | PiecewiseConstant


def _part(step: tf.Tensor, steps: float, staircase: bool) -> tf.Tensor:
    return tf.floor(step / steps) if staircase else step / steps
