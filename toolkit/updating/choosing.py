"""`--update auto`: the tensors of most use for what they cost, within limits.

As in MCUNet's sparse update and TinyTrain, behind every depth at which the backward pass may end
tensors are taken in the order of use per byte while operations and bytes are within the limits;
the depth with the largest use in total is chosen. The tensors of the last layer are always taken.

Micro-batches give the gradient of the batch to the last digit here, since batch normalisation
stands still, so memory is priced for small ones, `LEAST` examples: how many examples a step really
takes at once is measured when the bundle is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.autodiff.program import Value
from toolkit.updating.costs import Candidate, Costs, bytes_of, totals

LEAST = 4  # examples in a micro-batch; fewer take more time, for what a call costs
PART = 0.5  # of the operations of a full update, where no step time is asked for
PACKING = 1.2  # as in `memory_estimate`: alignment, and what kernels pack
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Limits:
    """What a plan may cost."""

    operations: float  # multiply-accumulates of a step, for one example
    bytes: float  # of a device, beside the process and what inference takes
    examples: int = LEAST  # in a micro-batch


@dataclass(frozen=True)
class Chosen:
    """A plan, and what it is estimated to cost."""

    names: frozenset[str]
    use: float  # the part of the use of all candidates
    operations: float  # of one example
    bytes: int


def choose(costs: Costs, use: Mapping[str, float], limits: Limits) -> Chosen:
    top = layer_of(max(costs.candidates, key=lambda c: c.place).name)
    head = {c.name: c for c in costs.candidates if layer_of(c.name) == top}
    best, most = head, -1.0
    for depth in sorted({c.place for c in costs.candidates}):
        taken = _taken(costs, use, limits, head, depth)
        gained = sum(use[name] for name in taken)
        if gained > most:
            best, most = taken, gained
    operations, kept, state = totals(costs, best)
    return Chosen(
        names=frozenset(best),
        use=most / max(sum(use[c.name] for c in costs.candidates), 1e-30),
        operations=operations,
        bytes=round(2 * state + PACKING * limits.examples * kept),
    )


def _taken(
    costs: Costs,
    use: Mapping[str, float],
    limits: Limits,
    head: Mapping[str, Candidate],
    depth: int,
) -> dict[str, Candidate]:
    """What fits if the backward pass may go down to this node; the head at least."""
    taken = dict(head)
    kept: set[Value] = costs.kept_from(depth) | {c.keeps for c in head.values() if c.keeps}
    operations = costs.operations_from(depth) + sum(c.operations for c in head.values())
    numbers = sum(c.numbers for c in head.values())

    def price(values: set[Value], count: int) -> float:
        """Bytes: state twice, as a checkpoint needs it, and what micro-batches keep."""
        examples = limits.examples * (bytes_of(values) + costs.under_way(depth))
        return 2 * _FLOAT * costs.copies * count + PACKING * examples

    if operations > limits.operations or price(kept, numbers) > limits.bytes:
        return taken
    spent = price(kept, numbers)
    reachable = [c for c in costs.candidates if c.place >= depth and c.name not in head]

    def worth(c: Candidate) -> float:
        own = price(kept | ({c.keeps} if c.keeps else set()), numbers + c.numbers) - spent
        return use[c.name] / own

    for c in sorted(reachable, key=worth, reverse=True):
        more = kept | ({c.keeps} if c.keeps else set())
        if operations + c.operations > limits.operations:
            continue
        if price(more, numbers + c.numbers) > limits.bytes:
            continue
        kept, numbers, operations = more, numbers + c.numbers, operations + c.operations
        taken[c.name] = c
    return taken


def layer_of(name: str) -> str:
    return name.rpartition("/")[0]
