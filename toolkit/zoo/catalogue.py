"""Every branch of the zoo, by task, topology and kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolkit.branch.branch import Branch
from toolkit.zoo import atari, cartpole, cifar10, digits, minatar

Branches = Mapping[tuple[str, str], Callable[[], Branch]]  # by topology and kind

BRANCHES: Mapping[str, Branches] = {
    "atari": atari.BRANCHES,
    "cartpole": cartpole.BRANCHES,
    "cifar10": cifar10.BRANCHES,
    "digits": digits.BRANCHES,
    "minatar": minatar.branches("breakout"),
}
