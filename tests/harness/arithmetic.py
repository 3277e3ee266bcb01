"""What a fleet should compute, in plain numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from broker.protocol.messages import Update
from broker.protocol.slice import Tensors

# The options with which an aggregator merges by the formulas below, however devices differ.
UNBOUNDED = ("--max-weight", "off", "--clip", "off")


def replay(
    start: Tensors, updates: Iterable[Update], *, mean: bool = False, momentum: float = 0.0
) -> Tensors:
    """Returns what synchronous rounds make of `start`.

    For each round and tensor: v ← β·v + Σ_k n_k·Δ_k / Σ_k n_k over the devices that hold it, and
    θ ← θ + v, with the momentum β. Between rounds θ is float32, as devices get it; n_k = 1 for the
    plain mean.
    """
    theta = dict(start)
    velocity = {name: np.zeros(value.shape) for name, value in start.items()}
    rounds: dict[int, list[Update]] = {}
    for update in updates:
        rounds.setdefault(update.round, []).append(update)
    assert sorted(rounds) == list(range(len(rounds)))
    for number in range(len(rounds)):
        for name in theta:
            holders = [u for u in rounds[number] if name in u.tensors]
            if holders:
                weights = [1 if mean else u.samples for u in holders]
                changes = [u.tensors[name].astype(np.float64) for u in holders]
                change = np.average(changes, axis=0, weights=weights)
                velocity[name] = momentum * velocity[name] + change
                theta[name] = (theta[name] + velocity[name]).astype(np.float32)
    return theta


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Tensors are equal to 1e-6, by name."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
