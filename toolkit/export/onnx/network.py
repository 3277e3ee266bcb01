"""Branch → ONNX: the whole network, as a device computes it for one example."""

from __future__ import annotations

import onnx
from onnx import helper

from toolkit.branch.branch import Branch
from toolkit.export.onnx.operations import OnnxGraph

OUTPUT = "output"


def build_network(branch: Branch) -> onnx.ModelProto:
    """Returns a valid model that takes `x`, as the device does, and computes `output`.

    Weights are initialisers, under their names and in Keras' layout.
    """
    program = branch.trace(batch=1, training=False)
    used = {value for node in program.nodes for value in node.inputs}
    weights = [name for name, value in program.parameters.items() if value in used]
    graph = OnnxGraph(program, branch, weights)
    for node in program.nodes:
        graph.translate(node, f"{node.layer}/")
    graph.nodes.append(helper.make_node("Identity", [graph.names[program.y]], [OUTPUT], OUTPUT))
    graph.names[program.y] = OUTPUT
    return graph.model("network", [program.y])
