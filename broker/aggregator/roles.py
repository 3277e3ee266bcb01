"""Roles: what a shared tensor does in its network, read from the slice's ONNX graph.

Equal shapes do not mean equal roles. A tensor's role is the operations that use it and those that
follow within the shared layers, each with its attributes and a digest of everything that feeds it.
The values of weights are no part of a role.

Two prefixes of node names carry what a plain ONNX graph cannot say:
`between/…`  an operation outside the shared layers. It belongs to what feeds the next tensor, not
             to what follows the last one, so a slice that ends earlier still fits.
`local/…`    a constant that is the device's own (moving statistics, weights it does not share):
             only its type and shape count.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper, numpy_helper

from broker.protocol.slice import canonical_json, json_digest

BETWEEN = "between/"
LOCAL = "local/"
_LAYOUT = frozenset({"Transpose", "Reshape", "Identity"})  # change the layout, not the numbers


@dataclass(frozen=True, eq=False)
class _Operation:
    """A node, its description in a role, and the layer that it is part of."""

    layer: str
    between: bool
    inputs: frozenset[str]
    outputs: frozenset[str]
    description: Mapping[str, Any]

    @property
    def moves_only(self) -> bool:
        return self.description["op"] in _LAYOUT


def read_roles(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Returns the role of each tensor as canonical JSON: its `uses`, and what `follows` them."""
    operations = _operations(graph, shapes)
    uses = {name: _uses(name, operations) for name in shapes}
    owners: dict[str, set[str]] = defaultdict(set)  # layer → prefixes of its tensors' names
    for name in shapes:
        for use in uses[name]:
            owners[use.layer].add(_prefix(name))
    roles = {}
    for name in shapes:
        others = {layer for layer, prefixes in owners.items() if _prefix(name) not in prefixes}
        follows = _follows(uses[name], operations, others)
        parts = {"uses": uses[name], "follows": follows}
        roles[name] = canonical_json({k: [o.description for o in v] for k, v in parts.items()})
    return roles


def _uses(name: str, operations: Iterable[_Operation]) -> list[_Operation]:
    """Returns the operations that compute with a tensor, in whatever layout."""
    carriers, uses = {name}, []
    for operation in operations:
        if carriers & operation.inputs:
            if operation.moves_only:
                carriers |= operation.outputs
            else:
                uses.append(operation)
    return uses


def _follows(
    uses: list[_Operation], operations: Iterable[_Operation], others: set[str]
) -> list[_Operation]:
    """Returns what follows, up to the next layer with tensors or to the end of shared layers."""
    reached = {value for use in uses for value in use.outputs}
    follows = []
    for operation in operations:
        ends = operation.between or operation.layer in others
        if operation not in uses and not ends and reached & operation.inputs:
            reached |= operation.outputs
            if not operation.moves_only:
                follows.append(operation)
    return follows


def _operations(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> list[_Operation]:
    """Returns the nodes, which ONNX keeps in topological order."""
    digests = {"": ""}  # of everything that a value is computed from; "" is an omitted input
    for value in graph.input:
        digests[value.name] = json_digest(["input", _type(value.type.tensor_type)])
    for name, shape in shapes.items():
        digests[name] = json_digest(["tensor", name, shape])
    found = []
    for index, node in enumerate(graph.node):
        own = node.name.startswith(LOCAL)
        settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        description = {
            "op": node.op_type,
            "attributes": {k: _plain(v, numbers=not own) for k, v in settings.items()},
            "inputs": [digests[name] for name in node.input],
        }
        for position, name in enumerate(node.output):
            digests[name] = json_digest([description, position])
        found.append(
            _Operation(
                layer=_prefix(node.name) or f"#{index}",  # without one, a layer by itself
                between=node.name.startswith(BETWEEN),
                inputs=frozenset(node.input),
                outputs=frozenset(node.output),
                description=description,
            )
        )
    return found


def _prefix(name: str) -> str:
    """Returns 'stem_conv1' for 'stem_conv1/kernel'."""
    return name.rpartition("/")[0]


def _plain(value: Any, *, numbers: bool) -> Any:
    """Returns an attribute as JSON; a tensor as type, shape and the digest of its numbers."""
    if isinstance(value, onnx.TensorProto):
        array = numpy_helper.to_array(value)
        found = hashlib.sha256(array.tobytes()).hexdigest() if numbers else ""
        return [str(array.dtype), array.shape, found]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, int | float):
        return value
    return [_plain(item, numbers=numbers) for item in value]


def _type(tensor: onnx.TypeProto.Tensor) -> list[Any]:
    return [tensor.elem_type, [d.dim_param or d.dim_value for d in tensor.shape.dim]]
