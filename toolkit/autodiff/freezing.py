"""Frozen parameters as constants, and the part of a program that never changes.

A frozen parameter is a constant, and so is all that follows from constants alone: what is left of
a frozen batch normalisation is one product and one sum, which the converter puts into the
convolution before it. What depends on the input and on constants only is the same in every step,
in training and in inference. It is cut off as the prefix:

    features = prefix(x)        y = head(features; θ)

The prefix needs no gradient, so it is computed by TensorFlow's own operations, and it may hold
operations that have no rule.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.program import Node, Program, Value
from toolkit.autodiff.rules import RULES
from toolkit.autodiff.rules.random import RULES as RANDOM

Array = npt.NDArray[Any]
PREFIX = "prefix"  # the layer of the nodes that pack features
_LISTS = frozenset({"ConcatV2", "Pack", "AddN"})  # take a list of tensors: their rules are as good
_LAYERS = frozenset({"Conv2D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "Conv3D"})
_WHOLE = dict.fromkeys(
    ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
)


def freeze(program: Program, values: Mapping[str, Array]) -> Program:
    """The program with these parameters as constants, and all that follows from constants alone."""
    constants = dict(program.constants)
    constants |= {program.parameters[name]: value for name, value in values.items()}
    nodes = []
    for node in program.nodes:
        if node.op not in RANDOM and all(value in constants for value in node.inputs):
            constants[node.output] = np.asarray(plain(node, *map(constants.get, node.inputs)))
        else:
            nodes.append(node)
    parameters = {name: v for name, v in program.parameters.items() if name not in values}
    return replace(program, parameters=parameters, constants=constants, nodes=tuple(nodes))


def plain(node: Node, *inputs: Any) -> tf.Tensor:
    """The node's result by TensorFlow's operation of the same name."""
    if node.op == "Reshape":
        return tf.reshape(inputs[0], node.output.shape)
    if node.op in _LISTS:
        return RULES[node.op](node, *inputs)[0]
    operation = getattr(tf.raw_ops, node.op)
    names = list(inspect.signature(operation).parameters)
    attributes = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in node.attrs.items()
        if name in names
    }
    return operation(**dict(zip(names, inputs, strict=False)), **attributes)


def run_plainly(program: Program, x: tf.Tensor) -> tf.Tensor:
    """y of a program without parameters."""
    tensors: dict[Value, Any] = {program.x: x, **program.constants}
    for node in program.nodes:
        with tf.name_scope(node.layer):
            tensors[node.output] = plain(node, *(tensors[value] for value in node.inputs))
    return tensors[program.y]


@dataclass(frozen=True)
class Cut:
    """Where a prefix ends: places of nodes in the program of inference, equal for every batch."""

    inside: frozenset[int]  # all nodes of the prefix
    features: tuple[int, ...]  # those whose results are read behind it

    def prefix(self, program: Program) -> Program:
        """features = prefix(x), of a program of inference; several results are put in one row."""
        nodes = [node for place, node in enumerate(program.nodes) if place in self.inside]
        ends = [program.nodes[place].output for place in self.features]
        constants = dict(program.constants)
        if len(ends) > 1:
            new = _Numbering(program)
            rows = [new.value((v.shape[0], v.size // v.shape[0])) for v in ends]
            nodes += [Node("Reshape", PREFIX, (v,), r, {}) for v, r in zip(ends, rows, strict=True)]
            axis = new.constant(constants, np.array(1, np.int32))
            ends = [new.value((rows[0].shape[0], sum(row.shape[1] for row in rows)))]
            nodes.append(Node("ConcatV2", PREFIX, (*rows, axis), ends[0], {}))
        return Program(program.x, ends[0], {}, {}, constants, tuple(nodes))

    def head(self, program: Program, inference: Program) -> Program:
        """y = head(features) of either program of a batch size, given that of inference."""
        keys, names = _keys(program), _keys(inference)
        inside = {names[inference.nodes[place].output] for place in self.inside}
        ends = [inference.nodes[place].output for place in self.features]
        mine = {key: value for value, key in keys.items()}
        found = [mine.get(names[end]) for end in ends]  # a value may be read in one mode only
        nodes = [node for node in program.nodes if keys[node.output] not in inside]
        constants = dict(program.constants)
        if len(found) == 1:
            assert found[0] is not None
            return replace(program, x=found[0], nodes=tuple(nodes))
        new = _Numbering(program)
        batch, sizes = ends[0].shape[0], [end.size // end.shape[0] for end in ends]
        row, before = new.value((batch, sum(sizes))), []
        for value, size, start in zip(found, sizes, accumulate(sizes, initial=0), strict=False):
            if value is not None:
                bounds = [[0, start], [batch, start + size], [1, 1]]
                limits = [new.constant(constants, np.array(b, np.int32)) for b in bounds]
                part = new.value((batch, size))
                before.append(Node("StridedSlice", PREFIX, (row, *limits), part, _WHOLE))
                before.append(Node("Reshape", PREFIX, (part,), value, {}))
        return replace(program, x=row, constants=constants, nodes=(*before, *nodes))


def find_cut(inference: Program, training: Program) -> Cut | None:
    """The largest prefix that two frozen programs of a batch size have in common.

    None if there is no frozen layer in it, or if it cannot be told apart row by row.
    """
    keys, also = _keys(inference), _keys(training)
    common = {keys[v] for v in _fixed(inference)} & {also[v] for v in _fixed(training)}
    inside = {i for i, node in enumerate(inference.nodes) if keys[node.output] in common}
    read = _read_behind(inference, keys, common) | _read_behind(training, also, common)
    features = tuple(i for i in sorted(inside) if keys[inference.nodes[i].output] in read)
    ends = [inference.nodes[place].output for place in features]
    batch = inference.x.shape[0]
    if (
        not any(inference.nodes[place].op in _LAYERS for place in inside)
        or keys[inference.x] in read
        or not ends
        or any(v.dtype != "float32" or len(v.shape) < 2 or v.shape[0] != batch for v in ends)
    ):
        return None
    return Cut(frozenset(inside), features)


class _Numbering:
    """New values of a program."""

    def __init__(self, program: Program) -> None:
        used = (value.id for node in program.nodes for value in (*node.inputs, node.output))
        self._free = count(1 + max(used))

    def value(self, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        return Value(next(self._free), shape, dtype)

    def constant(self, constants: dict[Value, Array], array: Array) -> Value:
        value = self.value(array.shape, array.dtype.name)
        constants[value] = array
        return value


def _fixed(program: Program) -> set[Value]:
    """All results that depend on the input and on constants only."""
    fixed = {program.x, *program.constants}
    for node in program.nodes:
        if node.op not in RANDOM and fixed.issuperset(node.inputs):
            fixed.add(node.output)
    return fixed - program.constants.keys()


def _keys(program: Program) -> dict[Value, bytes]:
    """What each value is, so that equal ones of two programs have equal keys."""
    keys = {program.x: b"x"}
    keys |= {value: f"parameter {name}".encode() for name, value in program.parameters.items()}
    for value, array in program.constants.items():
        keys[value] = _digest(f"{array.dtype}{array.shape}".encode(), array.tobytes())
    for node in program.nodes:
        number = str(node.output.id) if node.op in RANDOM else ""
        about = f"{node.op} {number} {node.output.shape} {sorted(node.attrs.items())}".encode()
        keys[node.output] = _digest(about, *(keys[value] for value in node.inputs))
    return keys


def _digest(*parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _read_behind(program: Program, keys: Mapping[Value, bytes], inside: set[bytes]) -> set[bytes]:
    """The values that nodes outside of the prefix read, and the outputs."""
    behind = [node for node in program.nodes if keys[node.output] not in inside]
    read = {value for node in behind for value in node.inputs}
    read |= {program.y, *program.updates.values()} | ({program.early} if program.early else set())
    return {keys[value] for value in read}
