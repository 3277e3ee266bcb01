"""Branch → `shared.onnx`: the graph from the input to the last shared layers.

Shared tensors are the initialisers, under their names and in Keras' layout; everything else that
is stored is a constant. Values are named by their position, so that the same stem gives the same
graph whatever branch it is part of. Node names follow `broker.aggregator.roles`. The metadata
state the merge that fits what the branch learns, and which tensors bring trained values; no
fingerprint depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import onnx
from onnx import helper

from broker.aggregator.roles import BETWEEN
from broker.aggregator.slice_file import MERGE, TRAINED
from toolkit.autodiff.nested_layers import nested_layers
from toolkit.autodiff.program import Node, Program, Value
from toolkit.branch.branch import Branch
from toolkit.errors import ModelError
from toolkit.export.onnx.operations import OnnxGraph


def build_slice(branch: Branch, trained: Collection[str] = ()) -> onnx.ModelProto:
    """Returns a valid ONNX model that computes what the last shared layers put out.

    `trained` are the tensors whose values were loaded, not drawn.
    """
    program = branch.trace(batch=1, training=False)
    shared = _shared_layers(branch)
    graph = OnnxGraph(program, branch, branch.shared_names)
    sinks = _sinks(program, shared)
    for node in _ordered(program, sinks):
        graph.translate(node, f"shared/{node.layer}/" if node.layer in shared else BETWEEN)
    model = graph.model("slice", [node.output for node in sinks])
    names = [name for name in branch.shared_names if name in trained]
    said = {TRAINED: json.dumps(names)} if names else {}
    helper.set_model_props(model, {MERGE: branch.learning.merge, **said})
    return model


def _shared_layers(branch: Branch) -> frozenset[str]:
    """The shared layers and all inside them, since a node knows only its innermost layer."""
    layers = nested_layers(branch.model)
    shared = [layer for layer in layers if layer.name in branch.shared_layers]
    inside = [inner for layer in shared for inner in (layer, *nested_layers(layer))]
    names = frozenset(layer.name for layer in inside)
    for layer in layers:
        if layer.name in names and not any(layer is inner for inner in inside):
            raise ModelError(
                f"a shared and a local layer are both called {layer.name!r}; name them apart."
            )
    return names


def _sinks(program: Program, shared: frozenset[str]) -> list[Node]:
    """The last nodes of shared layers: on the way to the output they meet no other shared one.

    A closing softmax belongs to no layer: in a cascade the same layer ends before it.
    """
    needed, feeding = {program.logits()}, set[Value]()
    sinks = []
    for node in reversed(program.nodes):
        if node.output in needed:
            needed.update(node.inputs)
            if node.layer in shared and node.output not in feeding:
                sinks.append(node)
            if node.layer in shared or node.output in feeding:
                feeding.update(node.inputs)
    # A trace skips a layer's closing reshape when another one follows; here the layer ends with it.
    closing = {(node.layer, node.inputs[0]): node for node in program.nodes if node.op == "Reshape"}
    ends = (closing.get((node.layer, node.output), node) for node in sinks)
    return sorted(ends, key=lambda node: node.layer)


def _ordered(program: Program, sinks: list[Node]) -> list[Node]:
    """What the sinks need, depth first: an order that depends on nothing but the slice."""
    producers = {node.output: node for node in program.nodes}
    ordered: dict[Node, None] = {}
    stack = sinks[::-1]
    while stack:
        before = (producers[v] for v in stack[-1].inputs if v in producers)
        waiting = next((node for node in before if node not in ordered), None)
        if waiting is None:
            ordered[stack.pop()] = None
        else:
            stack.append(waiting)
    return list(ordered)
