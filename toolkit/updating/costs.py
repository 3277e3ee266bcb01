"""What it costs to train tensors of a branch: operations of a step, and bytes that it keeps.

A backward pass that ends at a layer needs, of every example,

    operations   the forward pass, of which frozen layers take a quarter; of every product above the
                 layer the gradient of its input, and of each trained kernel its own
    bytes        what gradients are computed from: the result of every activation function above,
                 the input of every trained kernel; and the gradients under way

and of every number that trains its value, gradient, accumulated gradient and optimiser slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolkit.autodiff.program import Node, Program, Value
from toolkit.branch.branch import Branch
from toolkit.branch.counting import operations_of
from toolkit.errors import ModelError

FROZEN_FORWARD = 0.25  # a convolution with constant weights takes about a quarter of the time
PRODUCTS = frozenset({"Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2"})
SHIFTS = ("bias", "beta")
_FLOAT = 4  # bytes
# Gradients pass through these without the values that went in or came out.
_LINEAR = frozenset(
    {"AddV2", "Sub", "Neg", "BiasAdd", "Sum", "Mean", "AvgPool", "Cast", "BroadcastTo", "Tile"}
    | {"Reshape", "Transpose", "Pad", "PadV2", "ConcatV2", "StridedSlice", "ReverseV2"}
    | {"SpaceToBatchND", "BatchToSpaceND"}
)
_FROM_RESULT = frozenset({"Relu", "Relu6", "Elu", "Sigmoid", "Tanh", "Softmax", "Exp", "Sqrt"})


@dataclass(frozen=True)
class Candidate:
    """A tensor that may train, at the place of its layer's node in the program."""

    name: str
    place: int
    operations: int  # of its gradient, for one example
    numbers: int
    keeps: Value | None  # what its gradient is computed from, beside what comes back


@dataclass(frozen=True)
class Costs:
    """A branch with all that is needed to price a plan; nothing of a plan yet."""

    candidates: tuple[Candidate, ...]  # kernels, biases and shifts, in the order of the program
    products: tuple[int, ...]  # multiply-accumulates of each node, for one example
    passing: tuple[frozenset[Value], ...]  # what each node keeps to pass a gradient on
    sizes: tuple[int, ...]  # bytes of each node's result, for one example
    copies: int  # of every number that trains

    @property
    def whole(self) -> float:
        """Operations of a full update."""
        return 3.0 * sum(self.products)

    def operations_from(self, place: int) -> float:
        """Of a pass that ends at this node, without gradients of kernels."""
        forward = FROZEN_FORWARD * sum(self.products[:place]) + sum(self.products[place:])
        return forward + sum(self.products[place + 1 :])

    def kept_from(self, place: int) -> set[Value]:
        """Values that a pass which ends at this node keeps, whichever kernels train."""
        return {value for kept in self.passing[place + 1 :] for value in kept}

    def under_way(self, place: int) -> int:
        """Bytes of the largest gradient above, of one example: it comes in and goes out."""
        return 2 * max(self.sizes[place:])


def costs_of(branch: Branch, names: Iterable[str]) -> Costs:
    """The costs of a branch whose tensors of these names may train.

    Scales of batch normalisation are no candidates: it stays in inference mode.
    """
    program = branch.trace(batch=1, training=False)
    stored = {value: name for name, value in program.parameters.items()}
    wanted = set(names)
    found: dict[str, Candidate] = {}
    for place, node in enumerate(program.nodes):
        for value in node.inputs:
            name = stored.get(value, "")
            if name not in wanted or name in found:
                continue
            if node.op in PRODUCTS:
                price = operations_of(node)
                found[name] = Candidate(name, place, price, value.size, node.inputs[0])
            elif kind_of(name) in SHIFTS:
                found[name] = Candidate(name, place, 0, value.size, None)
    if not found:
        raise ModelError("--update auto finds no kernel or bias that may train.")
    still = _still(program)
    return Costs(
        candidates=tuple(found.values()),
        products=tuple(operations_of(n) if n.op in PRODUCTS else 0 for n in program.nodes),
        passing=tuple(frozenset(_kept_by(node)) - still for node in program.nodes),
        sizes=tuple(_FLOAT * n.output.size for n in program.nodes),
        copies=4 + len(branch.learning.optimizer.slots),
    )


def bytes_of(kept: Iterable[Value]) -> int:
    return sum(_FLOAT * value.size for value in kept)


def kind_of(name: str) -> str:
    return name.rpartition("/")[2]


def _still(program: Program) -> frozenset[Value]:
    """Parameters, constants and what follows from them alone: there in any case."""
    found = {*program.parameters.values(), *program.constants}
    for node in program.nodes:
        if found.issuperset(node.inputs):
            found.add(node.output)
    return frozenset(found)


def _kept_by(node: Node) -> tuple[Value, ...]:
    if node.op in _LINEAR:
        return ()
    if node.op in _FROM_RESULT:
        return (node.output,)
    if node.op in PRODUCTS:
        return tuple(node.inputs[1:])  # a stored kernel, or of attention another activation
    return tuple(node.inputs)


def totals(costs: Costs, chosen: Mapping[str, Candidate]) -> tuple[float, int, int]:
    """Operations and kept bytes of one example, and bytes of state, if these train."""
    place = min(c.place for c in chosen.values())
    operations = costs.operations_from(place) + sum(c.operations for c in chosen.values())
    kept = costs.kept_from(place) | {c.keeps for c in chosen.values() if c.keeps is not None}
    state = _FLOAT * costs.copies * sum(c.numbers for c in chosen.values())
    return operations, bytes_of(kept) + costs.under_way(place), state
