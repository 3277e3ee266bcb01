"""Replaces, in a traced graph, every operation that is no basic one by basic ones.

Rules, ONNX and counts then know few operations; see expansions/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.expansions import EXPANSIONS, Call
from toolkit.autodiff.scopes import Scopes

Constants = Mapping[Any, npt.NDArray[Any]]  # by tensor


@dataclass(frozen=True)
class Expanded:
    """All operations of a graph in the order in which they can be computed, the new ones where the
    expanded one was, and the tensors that stand for those of expanded operations."""

    order: list[tf.Operation]
    replaced: Mapping[Any, tf.Tensor]

    def tensor(self, tensor: tf.Tensor) -> tf.Tensor:
        while tensor.ref() in self.replaced:
            tensor = self.replaced[tensor.ref()]
        return tensor


def expand(
    graph: tf.Graph, needed: set[tf.Operation], constants: Constants, scopes: Scopes
) -> Expanded:
    """Expands the needed operations, and those that appear in expansions; the graph grows."""
    order: list[tf.Operation] = []
    replaced: dict[Any, tf.Tensor] = {}
    expanded = Expanded(order, replaced)

    def visit(op: tf.Operation) -> None:
        expansion = EXPANSIONS.get(op.type)
        if expansion is None or op not in needed:
            order.append(op)
            return
        first = len(graph.get_operations())
        inputs = [expanded.tensor(tensor) for tensor in op.inputs]
        shapes = tuple(tuple(tensor.shape) for tensor in op.outputs)
        call = Call(op.type, scopes.layer(op), attributes(op), shapes)
        with graph.as_default(), tf.name_scope(f"{op.name}/"):
            results = expansion(call, *(_known(tensor, constants) for tensor in inputs))
        if results is None:
            order.append(op)
            return
        added = graph.get_operations()[first:]
        needed.update(added)
        for new in added:
            visit(new)
        replaced.update({t.ref(): r for t, r in zip(op.outputs, results, strict=True)})

    for op in graph.get_operations():
        visit(op)
    return expanded


def _known(tensor: tf.Tensor, constants: Constants) -> Any:
    """A tensor, or the numbers that it is known to hold."""
    known = constants.get(tensor.ref())
    known = tf.get_static_value(tensor) if known is None else known
    return tensor if known is None else known


def attributes(op: tf.Operation) -> dict[str, Any]:
    """Strides, paddings and the like; types and sizes are in the values already."""
    found: dict[str, Any] = {}
    for key in op.node_def.attr:
        if key.startswith(("T", "_")):
            continue
        value = op.get_attr(key)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")  # a function's settings are no text
        elif isinstance(value, tf.DType):
            value = value.name
        elif isinstance(value, list):
            value = tuple(value)
        found[key] = value
    return found
