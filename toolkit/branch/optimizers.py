"""Optimisers as pure functions on one flat vector that holds all trainable tensors.

update(gradient, slots, step) → (change of θ, new slots). One vector instead of one per tensor
keeps the exported graph small: ten operations, however many layers the branch has. The formulas
are those of Keras 3, so that a branch trains as it would there; so is the order of a step:
gradients are clipped, then θ ← θ · (1 - η_t · weight_decay), then θ changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import tensorflow as tf

from toolkit.branch.schedules import Schedule

Slots = Mapping[str, tf.Tensor]


@dataclass(frozen=True)
class Optimizer:
    """`step` counts from zero; every slot is a vector as long as the gradient."""

    slots: ClassVar[tuple[str, ...]]

    learning_rate: float | Schedule = 0.001
    weight_decay: float = field(default=0.0, kw_only=True)
    # At most one of these is given: of each number, of each tensor's norm, of the norm of all.
    clipvalue: float | None = field(default=None, kw_only=True)
    clipnorm: float | None = field(default=None, kw_only=True)
    global_clipnorm: float | None = field(default=None, kw_only=True)

    def rate(self, step: tf.Tensor) -> float | tf.Tensor:
        """η_t; a plain number where no schedule moves it, so that it stays a constant."""
        rate = self.learning_rate
        return rate if isinstance(rate, int | float) else rate.at(step)

    def update(self, gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimizer):
    """v ← μ·v - η·g;  θ ← θ + v, or with Nesterov's momentum θ ← θ + μ·v - η·g."""

    learning_rate: float | Schedule = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def update(self, gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
        moved = self.rate(step) * gradient
        velocity = self.momentum * slots["velocity"] - moved
        change = self.momentum * velocity - moved if self.nesterov else velocity
        return change, {"velocity": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """m ← β₁·m + (1-β₁)·g;  v ← β₂·v + (1-β₂)·g²;  θ ← θ - η_t · m / (√v + ε),
    with η_t = η·√(1-β₂ᵗ) / (1-β₁ᵗ).

    The slots hold M = m/(1-β₁) and V = v/(1-β₂), so that M ← β₁·M + g and V ← β₂·V + g², and what
    is left of the factors goes into η_t and ε: two passes over the tensor less.
    """

    learning_rate: float | Schedule = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    def update(self, gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
        mean = self.beta_1 * slots["mean"] + gradient
        square = self.beta_2 * slots["square"] + gradient * gradient
        root = math.sqrt(1.0 - self.beta_2)
        t = step + 1.0
        rate = (
            (-self.rate(step) * (1.0 - self.beta_1) / root)
            * tf.sqrt(1.0 - tf.pow(self.beta_2, t))
            / (1.0 - tf.pow(self.beta_1, t))
        )
        change = rate * mean / (tf.sqrt(square) + self.epsilon / root)
        return change, {"mean": mean, "square": square}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay."""

    weight_decay: float = field(default=0.004, kw_only=True)


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """v ← ρ·v + (1-ρ)·g²;  θ ← θ - η_t · g / √(v + ε),  with η_t = η / (1 + decay·t).

    The slot holds V = v/(1-ρ), as in Adam.
    """

    learning_rate: float | Schedule = 0.001
    rho: float = 0.9
    epsilon: float = 1e-7
    decay: float = 0.0
    slots: ClassVar[tuple[str, ...]] = ("square",)

    def rate(self, step: tf.Tensor) -> float | tf.Tensor:
        return super().rate(step) / (1.0 + self.decay * step)

    def update(self, gradient: tf.Tensor, slots: Slots, step: tf.Tensor) -> tuple[tf.Tensor, Slots]:
        share = 1.0 - self.rho
        square = self.rho * slots["square"] + gradient * gradient
        rate = -self.rate(step) / math.sqrt(share)
        change = rate * gradient * tf.math.rsqrt(square + self.epsilon / share)
        return change, {"square": square}
