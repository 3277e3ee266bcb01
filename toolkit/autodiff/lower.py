"""Chooses, for each layer that has several formulations, the one to use in a runtime.

Which one is fastest depends on the runtime and on the layer's shape, so it is a matter of
measurement: a tuning holds what was measured, and where nothing was, a rule made from such
measurements decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from toolkit.autodiff.program import Node, Program


@dataclass(frozen=True)
class Layer:
    """A convolution with step one and without padding, as all of them end up; see rules."""

    image: tuple[int, int, int]  # height, width, channels
    kernel: tuple[int, int, int]  # height, width, filters
    dilation: tuple[int, int] = (1, 1)
    first: bool = False  # nothing before it learns, so its input needs no gradient

    @property
    def name(self) -> str:
        """How tuning files call it, such as `30x30x32 3x3x32`."""
        words = ["x".join(map(str, self.image)), "x".join(map(str, self.kernel))]
        if self.dilation != (1, 1):
            words.append(f"dilated {self.dilation[0]}x{self.dilation[1]}")
        return " ".join([*words, "first"] if self.first else words)


@dataclass(frozen=True)
class Choice:
    """A formulation, and the number of bytes of intermediate results that it makes at once: a batch
    that would need more is divided."""

    formulation: str
    part_bytes: int


@dataclass(frozen=True)
class Tuning:
    """The fastest formulation of every layer that was measured in a runtime."""

    runtime: str
    choices: Mapping[str, Choice] = field(default_factory=dict)  # by the layer's name

    def choose(self, layer: Layer) -> Choice:
        return self.choices.get(layer.name) or by_rule(self.runtime, layer)


def part_bytes(runtime: str) -> int:
    """Smaller parts stay in the cache, but ai-edge-litert then needs more memory for all of them
    together. It takes whole steps to see that; a layer alone does not show it."""
    return (2 if runtime == "tflite-runtime" else 4) * 2**20


def by_rule(runtime: str, layer: Layer) -> Choice:
    """What was best, or within a few percent of it, for nearly every layer that was measured.

    Whole patches if they are no wider than what is made of them, as in a first layer.
    """
    high, wide, filters = layer.kernel
    patch = high * wide * layer.image[2]
    return Choice("both" if patch <= filters else "rows", part_bytes(runtime))


def lower(program: Program, tuning: Tuning, trained: Collection[str] | None = None) -> Program:
    """The program with the tuning, and what it has to know, written into its convolutions.

    `trained` names the parameters that learn; None: all do.
    """
    program = _pool_first(program)
    active = program.active(frozenset(program.parameters if trained is None else trained))

    def lowered(node: Node) -> Node:
        if node.op != "Conv2D":
            return node
        first = node.inputs[0] not in active
        return replace(node, attrs={**node.attrs, "tuning": tuning, "first": first})

    return replace(program, nodes=tuple(map(lowered, program.nodes)))


def _pool_first(program: Program) -> Program:
    """max(relu(x)) = relu(max(x)), which is less to compute, and to mask on the way back."""
    nodes = list(program.nodes)
    for place, node in enumerate(nodes):
        if node.op != "Relu":
            continue
        users = [n for n in nodes if node.output in n.inputs]
        kept = node.output in (program.y, program.early, *program.updates.values())
        if kept or [n.op for n in users] != ["MaxPool"]:
            continue
        (pool,) = users
        pooled = replace(pool.output, id=node.output.id)
        nodes[nodes.index(pool)] = replace(node, inputs=(pooled,), output=pool.output)
        nodes[place] = replace(pool, inputs=node.inputs, output=pooled)
    return replace(program, nodes=tuple(nodes))
