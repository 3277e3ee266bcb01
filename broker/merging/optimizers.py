"""How the coordinator applies a merged update: θ_shared before → θ_shared after.

With `exchange = "gradient"` devices send gradients g, and an optimiser of the coordinator applies
them. With `exchange = "delta"` they send changes Δ that their own optimisers made. These are added,
or an optimiser of the coordinator applies them as the gradient g = -Δ.

Every optimiser is a frozen setting with two pure functions. Its slots are a flat dict of named
arrays (`<tensor>/m`, `<tensor>/v`, `<tensor>/t`), so that they can be stored and restored exactly.
A tensor that no device sent in a round keeps its value and its slots; t counts the steps of each
tensor separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from broker.errors import OptimizerRefused, StepRefused
from broker.protocol.slice import Tensors

Slots = dict[str, npt.NDArray[Any]]
_Array = npt.NDArray[np.float32]

_GRADIENT_RATE = 0.01
# β₂ and ε: of gradients as in Keras; of deltas, which are fewer and larger, as in Reddi et al.
_KERAS_ADAM, _FED_ADAM = (0.999, 1e-7), (0.99, 1e-3)


class Optimizer(Protocol):
    """`step` returns new arrays for what it changes and the given ones for what it does not."""

    @property
    def kind(self) -> str:
        """Stands in a stored state: the slots of one kind are of no use to another."""

    def initial(self, theta: Tensors) -> Slots: ...

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]: ...


@dataclass(frozen=True)
class Delta:
    """θ ← θ + Δ."""

    kind: ClassVar[str] = "Delta"

    def initial(self, theta: Tensors) -> Slots:
        return {}

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        return _each(theta, merged, slots, lambda _, value, delta: (value + delta, {}))


@dataclass(frozen=True)
class SGD:
    """θ ← θ - η·g."""

    kind: ClassVar[str] = "SGD"

    learning_rate: float

    def initial(self, theta: Tensors) -> Slots:
        return {}

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        def move(_: str, value: _Array, gradient: _Array) -> tuple[_Array, Slots]:
            return value - self.learning_rate * gradient, {}

        return _each(theta, merged, slots, move)


@dataclass(frozen=True)
class Momentum:
    """v ← β·v + g;  θ ← θ - η·v. Gradients that agree move θ up to 1/(1-β) times as far."""

    kind: ClassVar[str] = "Momentum"

    beta: float
    learning_rate: float

    def initial(self, theta: Tensors) -> Slots:
        return {f"{name}/v": np.zeros_like(value) for name, value in theta.items()}

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        def move(name: str, value: _Array, gradient: _Array) -> tuple[_Array, Slots]:
            v = self.beta * slots[f"{name}/v"] + gradient
            return value - self.learning_rate * v, {f"{name}/v": v}

        return _each(theta, merged, slots, move)


@dataclass(frozen=True)
class Adam:
    """m ← m + (g - m)(1-β₁);  v ← v + (g² - v)(1-β₂);  θ ← θ - η_t · m / (√v + ε),
    with η_t = η·√(1-β₂ᵗ) / (1-β₁ᵗ), as in Keras."""

    kind: ClassVar[str] = "Adam"

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


@dataclass(frozen=True)
class PseudoGradient:
    """Deltas for an optimiser of gradients: g = -Δ, so that θ - η·g moves along Δ.

    Momentum is then v ← β·v + Δ, θ ← θ + η·v. Adam is the FedAdam of Reddi et al. (2021, "Adaptive
    Federated Optimization") with Adam's correction of the first steps. Its ε, their τ, decides
    what it does: a number of θ whose Δ are far larger moves by about η whatever Δ is, one whose Δ
    are far smaller moves in proportion to Δ.
    """

    optimizer: Optimizer

    @property
    def kind(self) -> str:
        return self.optimizer.kind

    def initial(self, theta: Tensors) -> Slots:
        return self.optimizer.initial(theta)

    def step(self, theta: Tensors, merged: Tensors, slots: Slots) -> tuple[Tensors, Slots]:
        gradients = {name: np.negative(delta) for name, delta in merged.items()}
        return self.optimizer.step(theta, gradients, slots)


def parse_optimizer(text: str | None, exchange: str) -> Optimizer:
    """Returns the optimiser of a setting such as momentum:0.5, for what the devices exchange.

    None: deltas are added, and gradients applied with a rate of 0.01.
    """
    deltas = exchange == "delta"
    if text is None:
        return Delta() if deltas else SGD(_GRADIENT_RATE)
    name, *written = text.split(":")
    try:
        numbers = [float(number) for number in written]
    except ValueError:
        numbers = [math.nan]
    optimizer: Optimizer
    match name, numbers:
        case "sgd", [rate] if _positive(rate):
            optimizer = SGD(rate)
        case "momentum", [beta, *rates] if 0 <= beta < 1 and _positive(*rates) and len(rates) < 2:
            optimizer = Momentum(beta, *(rates or [1.0 if deltas else _GRADIENT_RATE]))
        case "adam", [rate, *epsilons] if _positive(rate, *epsilons) and len(epsilons) < 2:
            beta_2, usual = _FED_ADAM if deltas else _KERAS_ADAM
            optimizer = Adam(rate, beta_2=beta_2, epsilon=(epsilons or [usual])[0])
        case _:
            raise OptimizerRefused(
                f"optimizer {text!r} is not understood: write sgd:RATE, momentum:BETA[:RATE] or "
                "adam:RATE[:EPSILON] with 0 ≤ BETA < 1 and the others above 0, as in momentum:0.5."
            )
    return PseudoGradient(optimizer) if deltas else optimizer


def _positive(*numbers: float) -> bool:
    return all(0 < number < math.inf for number in numbers)


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
