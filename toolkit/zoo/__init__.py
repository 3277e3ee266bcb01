"""The paper's branches, and a small pair for digits.

`build(task, branch, topology)` is the only way in.
"""

from __future__ import annotations

from toolkit.branch import Branch
from toolkit.errors import ModelError
from toolkit.zoo import atari, cifar10, digits

TASKS = {"atari": atari.BRANCHES, "cifar10": cifar10.BRANCHES, "digits": digits.BRANCHES}


def build(task: str, branch: str, topology: str = "share-first") -> Branch:
    """A fresh branch with random weights."""
    try:
        make = TASKS[task][topology, branch]
    except KeyError:
        offered = sorted({name for name, _ in TASKS.get(task, {})})
        raise ModelError(
            f"task {task!r} has no {topology} topology; it has {', '.join(offered)}."
            if offered
            else f"there is no task {task!r}; there are {', '.join(TASKS)}."
        ) from None
    return make()


def names() -> list[tuple[str, str, str]]:
    """Every (task, branch, topology) of the zoo."""
    return [
        (task, branch, topology)
        for task, branches in TASKS.items()
        for topology, branch in branches
    ]
