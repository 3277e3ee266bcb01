"""How the coordinator applies a merged update: θ_shared before → θ_shared after.

With `exchange = "gradient"` devices send gradients g, and an optimiser of the coordinator applies
them; with `exchange = "delta"` they send changes Δ that their own optimisers made, which are added.

Every optimiser is a frozen setting with two pure functions. Its slots are a flat dict of named
arrays (`<tensor>/m`, `<tensor>/v`, `<tensor>/t`), so that they can be stored and restored exactly.
A tensor that no device sent in a round keeps its value and its slots; t counts the steps of each
tensor separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from broker.errors import OptimizerRefused, StepRefused
from broker.protocol.slice import Tensors

Slots = dict[str, npt.NDArray[Any]]
_Array = npt.NDArray[np.float32]


class Optimizer(Protocol):
    """`step` returns new arrays for what it changes and the given ones for what it does not."""

    def initial(self, theta: Tensors) -> Slots: ...

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]: ...


@dataclass(frozen=True)
class Delta:
    """θ ← θ + Δ."""

    def initial(self, theta: Tensors) -> Slots:
        return {}

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        return _each(theta, merged, slots, lambda _, value, delta: (value + delta, {}))


@dataclass(frozen=True)
class SGD:
    """θ ← θ - η·g."""

    learning_rate: float

    def initial(self, theta: Tensors) -> Slots:
        return {}

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        def move(_: str, value: _Array, gradient: _Array) -> tuple[_Array, Slots]:
            return value - self.learning_rate * gradient, {}

        return _each(theta, merged, slots, move)


@dataclass(frozen=True)
class Adam:
    """m ← m + (g - m)(1-β₁);  v ← v + (g² - v)(1-β₂);  θ ← θ - η_t · m / (√v + ε),
    with η_t = η·√(1-β₂ᵗ) / (1-β₁ᵗ), as in Keras."""

    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def initial(self, theta: Tensors) -> Slots:
        slots: Slots = {}
        for name, value in theta.items():
            slots[f"{name}/m"] = np.zeros_like(value)
            slots[f"{name}/v"] = np.zeros_like(value)
            slots[f"{name}/t"] = np.zeros(1, np.int64)
        return slots

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        def move(name: str, value: _Array, gradient: _Array) -> tuple[_Array, Slots]:
            m, v, t = (slots[f"{name}/{slot}"] for slot in "mvt")
            m = m + (gradient - m) * (1 - self.beta_1)
            v = v + (gradient * gradient - v) * (1 - self.beta_2)
            t = t + 1
            steps = int(t[0])
            rate = self.learning_rate * math.sqrt(1 - self.beta_2**steps) / (1 - self.beta_1**steps)
            moved = value - rate * m / (np.sqrt(v) + self.epsilon)
            return moved, {f"{name}/m": m, f"{name}/v": v, f"{name}/t": t}

        return _each(theta, merged, slots, move)


def parse_optimizer(text: str) -> Optimizer:
    """Returns the optimiser of a setting such as sgd:0.01 or adam:0.001."""
    name, _, written = text.partition(":")
    try:
        rate = float(written)
    except ValueError:
        rate = math.nan
    if name not in ("sgd", "adam") or not 0 < rate < math.inf:
        raise OptimizerRefused(
            f"optimizer {text!r} is not understood: write sgd:RATE or adam:RATE with a rate above "
            "0, as in adam:0.001."
        )
    return SGD(rate) if name == "sgd" else Adam(rate)


def _each(
    theta: Tensors,
    merged: Tensors,
    slots: Slots,
    move: Callable[[str, _Array, _Array], tuple[_Array, Slots]],
) -> tuple[Tensors, Slots]:
    """Changes the tensors that were sent; raises `StepRefused`, and changes none, if one cannot."""
    new_theta, new_slots = dict(theta), dict(slots)
    for name, change in merged.items():
        if name not in theta or theta[name].shape != change.shape:
            raise StepRefused(f"θ_shared has no tensor {name!r} of shape {change.shape}.")
        with np.errstate(over="ignore", invalid="ignore"):
            value, memory = move(name, theta[name], change)
            # For a tensor without dimensions numpy returns float64 scalars: back to arrays.
            moved = np.asarray(value, np.float32)
            kept = {slot: np.asarray(new, slots[slot].dtype) for slot, new in memory.items()}
        if not all(np.isfinite(array).all() for array in (moved, *kept.values())):
            raise StepRefused(
                f"the merged update would make tensor {name!r} infinite: set clip_norm, or choose "
                "a smaller rate or a robust merge."
            )
        new_theta[name] = moved
        new_slots |= kept
    return new_theta, new_slots
