"""Which of a branch's values were loaded, and which were only drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolkit.branch.branch import Branch


def trained_names(branch: Branch, again: Callable[[], Branch] | None = None) -> frozenset[str]:
    """Returns the tensors that hold trained values; all but zeros and ones, without `again`.

    What differs when `again` makes the branch with other random numbers was drawn. Zeros and ones
    are where biases and normalisations begin.
    """
    values = branch.weights()
    others = values if again is None else again().weights()
    return frozenset(
        name
        for name, value in values.items()
        if name in others
        and np.array_equal(value, others[name])
        and not (value == 0).all()
        and not (value == 1).all()
    )
