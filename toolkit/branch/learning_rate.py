"""Another learning rate for a branch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolkit.branch.branch import Branch


def with_learning_rate(branch: Branch, rate: float | None) -> Branch:
    """Returns the branch with this learning rate, or unchanged if it is None."""
    if rate is None:
        return branch
    changed: Any = {"learning_rate": rate}
    optimizer = replace(branch.learning.optimizer, **changed)  # type: ignore[type-var]
    return replace(branch, learning=replace(branch.learning, optimizer=optimizer))
