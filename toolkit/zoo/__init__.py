"""The paper's branches, and small pairs for digits, MinAtar and CartPole.

`build(task, branch, topology)` is the only way in. TensorFlow is loaded when a branch is built and
not before, so that commands can offer these names without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from toolkit.errors import ModelError

if TYPE_CHECKING:
    from toolkit.branch.branch import Branch

SupervisedTask = Literal["digits", "cifar10"]  # learnt from labelled examples
PlayedTask = Literal["atari", "minatar", "cartpole"]  # learnt by playing
Task = Literal[SupervisedTask, PlayedTask]
Topology = Literal["share-first", "cascading", "two-loss"]


def build(task: str, branch: str, topology: str = "share-first", game: str | None = None) -> Branch:
    """A fresh branch with random weights; only MinAtar's depend on the game (default breakout)."""
    from toolkit.zoo import minatar
    from toolkit.zoo.catalogue import BRANCHES

    branches = BRANCHES.get(task, {})
    if task == "minatar" and game is not None:
        branches = minatar.branches(game)
    try:
        make = branches[topology, branch]
    except KeyError:
        offered = sorted({name for name, _ in branches})
        raise ModelError(
            f"task {task!r} has no {topology} topology; it has {', '.join(offered)}."
            if offered
            else f"there is no task {task!r}; there are {', '.join(sorted(get_args(Task)))}."
        ) from None
    return make()


def names() -> list[tuple[str, str, str]]:
    """Every (task, branch, topology) of the zoo."""
    from toolkit.zoo.catalogue import BRANCHES

    return [
        (task, branch, topology)
        for task, branches in BRANCHES.items()
        for topology, branch in branches
    ]
