"""What lying devices send instead of what they learnt: pure functions on updates.

An attacker trains as the others do, so that it knows a usual update. Attackers that work together
know the updates of all honest devices too, which is more than a broker's access rules let them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broker.merging.bounds import Bounds
from broker.merging.vectors import scaled
from broker.protocol.slice import Tensors

MOST_SAMPLES = 10**9  # that an aggregator accepts
FACTOR = 10.0  # × a usual update: a lie that nobody would overlook
HUGE = 1e6  # of every number; ten such devices are still below what an aggregator accepts
STANDARD_DEVIATIONS = 1.5  # Baruch et al. 2019, section 4
IDENTITIES = 3  # names under which one attacker takes part


@dataclass(frozen=True, eq=False)
class Sent:
    """One update: Δ, and the sample count that it claims."""

    tensors: Tensors
    samples: int


Forge = Callable[[Sent, Sequence[Sent], np.random.Generator], Sent]


@dataclass(frozen=True)
class Attack:
    """How a device lies."""

    forge: Forge  # (its own honest update, those of the honest devices, random numbers) → update
    flips_labels: bool = False  # it trains on label 9 - y instead of y
    identities: int = 1


def honest(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """Δ as it was learnt."""
    return own


def sign_flip(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """-10 Δ: away from what it learnt."""
    return replace(own, tensors=scaled(own.tensors, -FACTOR))


def noise(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """Normal noise that is ten times as large as Δ, tensor by tensor."""
    drawn: Tensors = {}
    for name, value in own.tensors.items():
        size = float(np.linalg.norm(value)) * FACTOR / np.sqrt(value.size)
        drawn[name] = (size * rng.standard_normal(value.shape)).astype(np.float32)
    return replace(own, tensors=drawn)


def huge_values(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """± a million everywhere."""
    drawn: Tensors = {
        name: (HUGE * rng.choice([-1.0, 1.0], value.shape)).astype(np.float32)
        for name, value in own.tensors.items()
    }
    return replace(own, tensors=drawn)


def sample_lie(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """-10 Δ with the weight of a thousand million samples."""
    return replace(sign_flip(own, others, rng), samples=MOST_SAMPLES)


def within_bounds(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """-Δ · C/M with M times the samples, by an attacker who knows the defaults.

    It is hardly limited, moves the round back by about C usual updates, and adds M to the divisor.
    """
    bounds = Bounds()
    assert bounds.clip is not None
    assert bounds.max_weight is not None
    forged = scaled(own.tensors, -bounds.clip / bounds.max_weight)
    return Sent(forged, int(bounds.max_weight * own.samples))


def little(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """μ - 1.5 σ of the honest updates, number by number ("A little is enough").

    It hides within the spread of honest updates, so that no comparison of devices finds it.
    """
    forged: Tensors = {}
    for name in own.tensors:
        stacked = np.stack([other.tensors[name] for other in others]).astype(np.float64)
        mean, deviation = stacked.mean(axis=0), stacked.std(axis=0)
        forged[name] = (mean - STANDARD_DEVIATIONS * deviation).astype(np.float32)
    return replace(own, tensors=forged)


def mirrored(own: Sent, others: Sequence[Sent], rng: np.random.Generator) -> Sent:
    """-Δ, of the usual size."""
    return replace(own, tensors=scaled(own.tensors, -1.0))


NOBODY = "nobody lies"
ATTACKS = {
    "sign flip": Attack(sign_flip),
    "noise": Attack(noise),
    "huge values": Attack(huge_values),
    "sample lie": Attack(sample_lie),
    "within the bounds": Attack(within_bounds),
    "label flip": Attack(honest, flips_labels=True),
    "a little is enough": Attack(little),
    "sybils": Attack(mirrored, identities=IDENTITIES),
}
