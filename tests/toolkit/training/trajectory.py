"""Training in TensorFlow, and how far it ends from itself when numbers are rounded otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.naming import named_variables
from toolkit.bench.step.reference import Reference
from toolkit.branch.branch import Branch

PERTURBED, ROUNDING = 6, 2.0**-21  # sums in another order differ by some last bits


class Trajectory:
    """Training in TensorFlow, any number of times from any start, in one compiled function."""

    def __init__(self, branch: Branch, batches: list[dict[str, npt.NDArray[Any]]]) -> None:
        self._variables = named_variables(branch.model)
        self._batches = batches
        self._reference = Reference(branch)
        self._step = tf.function(self._reference.train, autograph=False)

    def run(self, start: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Returns the losses, and every tensor after the last step."""
        for name, variable in self._variables.items():
            variable.assign(start[name])
        reference = self._reference
        reference.target.set_weights(reference.model.get_weights())
        for slot in reference.optimizer.variables:
            if "learning_rate" not in slot.path:
                slot.assign(tf.zeros_like(slot))
        losses = np.array([float(self._step(**batch)) for batch in self._batches])
        return {"losses": losses} | {name: v.numpy() for name, v in self._variables.items()}

    def drift(self, start: dict[str, npt.NDArray[Any]]) -> dict[str, float]:
        """How far TensorFlow ends from itself when its initial weights are rounded otherwise.

        Rounding decides whether a relu unit that is almost zero lets a gradient through, and the
        optimiser makes the difference grow: two exact implementations part by as much.
        """
        wanted, found = self.run(start), dict.fromkeys(["losses", *start], 0.0)
        for seed in range(PERTURBED):
            rng = np.random.default_rng(seed)
            moved = {
                name: (v * (1 + ROUNDING * rng.choice([-1, 1], v.shape))).astype(v.dtype)
                for name, v in start.items()
            }
            for name, value in self.run(moved).items():
                found[name] = max(found[name], relative_error(value, wanted[name]))
        return found


def relative_error(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """The largest difference, relative to the largest number of the tensor."""
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-6))
