"""The paper's branches, and small pairs for digits, MinAtar and CartPole.

`build(task, branch, topology)` is the only way in.
"""

from __future__ import annotations

from toolkit.branch.branch import Branch
from toolkit.errors import ModelError
from toolkit.zoo import atari, cartpole, cifar10, digits, minatar

TASKS = {
    "atari": atari.BRANCHES,
    "cartpole": cartpole.BRANCHES,
    "cifar10": cifar10.BRANCHES,
    "digits": digits.BRANCHES,
    "minatar": minatar.branches("breakout"),
}


def build(task: str, branch: str, topology: str = "share-first", game: str | None = None) -> Branch:
    """A fresh branch with random weights; only MinAtar's depend on the game (default breakout)."""
    branches = TASKS.get(task, {})
    if task == "minatar" and game is not None:
        branches = minatar.branches(game)
    try:
        make = branches[topology, branch]
    except KeyError:
        offered = sorted({name for name, _ in branches})
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
