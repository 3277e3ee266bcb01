"""Replays a Program on TensorFlow tensors and differentiates what it replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from toolkit.autodiff.program import Node, Program, Value
from toolkit.autodiff.rules import RULES, Pullbacks
from toolkit.errors import UnsupportedOp


@dataclass(frozen=True, eq=False)
class Tape:
    """The tensors of one replay, and how a gradient passes back through each node."""

    program: Program
    tensors: Mapping[Value, tf.Tensor]
    pullbacks: Mapping[Node, Pullbacks]

    def __getitem__(self, value: Value) -> tf.Tensor:
        return self.tensors[value]

    def updates(self) -> dict[str, tf.Tensor]:
        """New values of the parameters that a pass in training mode replaces."""
        return {name: self.tensors[value] for name, value in self.program.updates.items()}

    def gradients(
        self, seeds: Mapping[Value, tf.Tensor], names: tuple[str, ...]
    ) -> dict[str, tf.Tensor]:
        """∂L/∂parameter for each name, given seeds = ∂L/∂value of the values that L is taken at.

        Reverse mode: dx += pullback(dy), walking the nodes backwards; values that no named
        parameter reaches get no gradient, so the first layer's input costs nothing.
        """
        active = self.program.active(frozenset(names))
        gradients = dict(seeds)
        for node in reversed(self.program.nodes):
            if node.output not in active or node.output not in gradients:
                continue
            dy = gradients.pop(node.output)
            for value, pullback in zip(node.inputs, self.pullbacks[node], strict=False):
                if value not in active:
                    continue
                if pullback is None:
                    raise UnsupportedOp(node.layer, node.op, "no gradient for this input")
                dx = pullback(dy)
                gradients[value] = gradients[value] + dx if value in gradients else dx
        parameters = self.program.parameters
        return {
            name: gradients[parameters[name]]
            if parameters[name] in gradients
            else tf.zeros(parameters[name].shape)
            for name in names
        }


def run(program: Program, parameters: Mapping[str, tf.Tensor], x: tf.Tensor) -> Tape:
    """Computes every node in order, each by its rule."""
    tensors: dict[Value, tf.Tensor] = {program.x: x, **program.constants}
    tensors |= {v: parameters[name] for name, v in program.parameters.items() if name in parameters}
    pullbacks: dict[Node, Pullbacks] = {}
    for node in program.nodes:
        rule = RULES.get(node.op)
        if rule is None:
            raise UnsupportedOp(node.layer, node.op)
        with tf.name_scope(node.layer):
            y, pullbacks[node] = rule(node, *(tensors[value] for value in node.inputs))
        tensors[node.output] = y
    return Tape(program, tensors, pullbacks)
