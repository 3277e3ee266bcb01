"""Which tensors of a branch train: the update plan.

all      what Keras calls trainable
last:K   the K last layers of them
biases   biases and shifts of batch normalisation, which need no stored input, and the last layer
auto     the tensors of most use for what they cost (`choosing`)

What a plan leaves out is frozen, or received where it is shared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from toolkit.autodiff.naming import named_variables
from toolkit.branch.branch import Branch
from toolkit.errors import ModelError
from toolkit.updating.choosing import layer_of
from toolkit.updating.costs import SHIFTS, kind_of

ALL, LAST, BIASES, AUTO = "all", "last:", "biases", "auto"


def planned(branch: Branch, plan: str) -> Branch:
    """Returns the branch with this update plan, which needs no examples."""
    if plan == ALL:
        return branch
    layers = list(dict.fromkeys(layer_of(name) for name in _in_order(branch)))
    if plan == BIASES:
        shifts = {name for name in branch.trainable_names if kind_of(name) in SHIFTS}
        chosen = shifts | {name for name in branch.trainable_names if layer_of(name) == layers[-1]}
    elif plan.startswith(LAST) and plan.removeprefix(LAST).isdecimal():
        last = layers[-int(plan.removeprefix(LAST)) :] if int(plan.removeprefix(LAST)) else []
        chosen = {name for name in branch.trainable_names if layer_of(name) in last}
    else:
        chosen = set()
    if not chosen:
        raise ModelError(f"--update {plan} is none of all, last:K with K ≥ 1, biases and auto.")
    return training(branch, plan, chosen)


def training(branch: Branch, plan: str, names: Collection[str]) -> Branch:
    """The branch of which only these tensors train."""
    return replace(branch, update=plan, trained=frozenset(names))


def _in_order(branch: Branch) -> list[str]:
    """What may train, in the order of the model."""
    names = set(branch.trainable_names)
    return [name for name in named_variables(branch.model) if name in names]
