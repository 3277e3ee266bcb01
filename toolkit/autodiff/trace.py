"""Keras model → Program: trace once, expand what is no basic operation, fold constants, keep only
what the outputs need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.expanding import Expanded, attributes, expand
from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.nested_layers import output_of
from toolkit.autodiff.program import Node, Program, Value
from toolkit.autodiff.scopes import Scopes
from toolkit.autodiff.unrolling import unrolled
from toolkit.errors import ModelError, UnsupportedOp

# Operations that only pass tensors on.
_TRANSPARENT = frozenset({"Identity", "IdentityN", "PreventGradient", "Snapshot", "CheckNumerics"})
# All of them become `Reshape`, whose target is the shape of its output.
_RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims"})
# Their seeds come from Keras' seed generators; the device draws its own numbers instead.
_RANDOM = frozenset({"StatelessRandomUniformV2", "StatelessRandomNormalV2"})
_SYNONYMS = {
    "Add": "AddV2",
    "BatchMatMul": "BatchMatMulV2",
    "BatchMatMulV3": "BatchMatMulV2",
    "Div": "RealDiv",
}


def trace(
    model: keras.Model,
    *,
    batch: int,
    training: bool,
    input_dtype: str = "float32",
    input_scale: float = 1.0,
    early_output: str | None = None,
) -> Program:
    """The model's operations for one batch size, in training or in inference mode.

    The input is cast and scaled inside, so that a device can feed the bytes that it stores. The
    program also says where the result of the layer `early_output` is.
    """
    shape = _input_shape(model)
    variables = named_variables(model)
    names = {v.path: name for name, v in variables.items()}
    if early_output is not None:
        both = [model.outputs[0], output_of(model, early_output)]
        model = keras.Model(model.inputs, both, name=model.name)
    # A function's graph, and no plain one, takes numbers that a layer keeps as eager tensors.
    graph = tf.__internal__.FuncGraph("trace")
    with graph.as_default(), unrolled(model):
        parameters = {
            name: tf.compat.v1.placeholder(v.dtype, v.shape) for name, v in variables.items()
        }
        x = tf.compat.v1.placeholder(input_dtype, (batch, *shape))
        with tf.name_scope("input"):
            scaled = tf.cast(x, "float32")
            if input_scale != 1.0:
                scaled = scaled * np.float32(input_scale)
        try:
            y, moved = model.stateless_call(
                [parameters[names[v.path]] for v in model.trainable_variables],
                [parameters[names[v.path]] for v in model.non_trainable_variables],
                scaled,
                training=training,
            )
        except ModelError:
            raise
        except Exception as error:  # a layer's own code may raise anything
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise ModelError(
                f"the model cannot be traced ({type(error).__name__}: {first_line})."
            ) from error
    y, early = (y, None) if early_output is None else y
    if not tf.is_tensor(y):
        raise ModelError("the model has several outputs; a branch has exactly one.")
    updates = {
        names[v.path]: new
        for v, new in zip(model.non_trainable_variables, moved, strict=True)
        if new is not parameters[names[v.path]] and v.dtype == "float32"
    }
    return _read(graph, x, y, early, parameters, updates, model)


def _input_shape(model: keras.Model) -> tuple[int, ...]:
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or not shape or None in shape[1:]:
        raise ModelError(
            f"the model's input shape is {shape}; a branch has one input of a fixed shape."
        )
    return tuple(int(n) for n in shape[1:])


def _read(
    graph: tf.Graph,
    x: tf.Tensor,
    y: tf.Tensor,
    early: tf.Tensor | None,
    parameters: Mapping[str, tf.Tensor],
    updates: Mapping[str, tf.Tensor],
    model: keras.Model,
) -> Program:
    values: dict[Any, Value] = {}  # by tensor; transparent operations share their input's value
    unreshaped: dict[Value, Value] = {}  # what a reshaped value was before all its reshapes
    constants: dict[Value, npt.NDArray[Any]] = {}
    nodes: list[Node] = []
    count = 0
    scopes = Scopes(model)

    def new(tensor: tf.Tensor) -> Value:
        nonlocal count
        if not tensor.shape.is_fully_defined():
            layer = scopes.layer(tensor.op)
            raise ModelError(f"layer {layer!r} has a shape that is unknown until it runs.")
        count += 1
        value = Value(count, tuple(tensor.shape), tensor.dtype.name)
        values[tensor.ref()] = value
        return value

    source = new(x)
    stored = {name: new(tensor) for name, tensor in parameters.items()}
    outputs = [y, *updates.values()]
    constant_ops = _constant_ops(graph)
    needed = _needed(outputs, constant_ops)
    for op in graph.get_operations():
        if op in needed and any(t.dtype in (tf.variant, tf.resource) for t in op.outputs):
            raise UnsupportedOp(scopes.layer(op), op.type)  # a list of tensors, as in a loop
    folded = _fold(graph, needed & constant_ops)
    expanded = expand(graph, needed - constant_ops, folded, scopes)
    found = expanded.tensor
    constant_ops = _constant_ops(graph)
    needed = _needed(map(found, outputs), constant_ops, expanded)
    folded |= _fold(
        graph, {op for op in needed & constant_ops if op.outputs[0].ref() not in folded}
    )
    for op in expanded.order:
        if op not in needed or (op.type == "Placeholder" and op not in constant_ops):
            continue
        inputs = [found(tensor) for tensor in _inputs(op)]
        if op in constant_ops:
            for tensor in op.outputs:
                constants[new(tensor)] = folded[tensor.ref()]
        elif op.type in _TRANSPARENT:
            for before, after in zip(inputs, op.outputs, strict=True):
                if before.ref() in values:
                    values[after.ref()] = values[before.ref()]
        elif len(op.outputs) != 1:
            raise UnsupportedOp(scopes.layer(op), op.type, "it has several outputs")
        elif op.type in _RESHAPES:
            before = values[inputs[0].ref()]
            origin = unreshaped.get(before, before)
            if origin.shape == tuple(op.outputs[0].shape):
                values[op.outputs[0].ref()] = origin
            else:
                after = new(op.outputs[0])
                unreshaped[after] = origin
                nodes.append(Node("Reshape", scopes.layer(op), (origin,), after, {}))
        else:
            taken = tuple(values[tensor.ref()] for tensor in inputs)
            kind = _SYNONYMS.get(op.type, op.type)
            made = new(op.outputs[0])
            nodes.append(Node(kind, scopes.layer(op), taken, made, attributes(op)))
    return Program(
        x=source,
        y=values[found(y).ref()],
        early=None if early is None else values[found(early).ref()],
        parameters=stored,
        updates={name: values[found(tensor).ref()] for name, tensor in updates.items()},
        constants=constants,
        nodes=tuple(nodes),
    )


def _inputs(op: tf.Operation) -> list[tf.Tensor]:
    """The inputs that decide the result; the shape alone for a random operation."""
    inputs = list(op.inputs)
    return inputs[:1] if op.type in _RANDOM else inputs


def _constant_ops(graph: tf.Graph) -> set[tf.Operation]:
    """Operations that depend on nothing but constants and static shapes."""
    constant: set[tf.Operation] = set()
    captured = {inside.op for _, inside in graph.captures}
    for op in graph.get_operations():
        from_constants = op.inputs and all(tensor.op in constant for tensor in op.inputs)
        static_shape = op.type == "Shape" and op.inputs[0].shape.is_fully_defined()
        kept = op in captured
        if (
            op.type == "Const"
            or kept
            or static_shape
            or (from_constants and op.type not in _RANDOM)
        ):
            constant.add(op)
    return constant


def _needed(
    outputs: Iterable[tf.Tensor], constant: set[tf.Operation], expanded: Expanded | None = None
) -> set[tf.Operation]:
    """What the outputs depend on; behind a constant nothing is needed."""
    needed: set[tf.Operation] = set()
    waiting = [tensor.op for tensor in outputs]
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            if op not in constant:
                inputs = _inputs(op)
                waiting.extend(t.op for t in (map(expanded.tensor, inputs) if expanded else inputs))
    return needed


def _fold(graph: tf.Graph, constant: set[tf.Operation]) -> dict[Any, npt.NDArray[Any]]:
    """The numbers of constants; what a layer keeps in eager tensors is fed."""
    kept = {
        i.name: o.numpy() for o, i in graph.captures if o.dtype not in (tf.variant, tf.resource)
    }
    tensors = [tensor for op in constant for tensor in op.outputs]
    shapes = {t.ref(): np.array(t.op.inputs[0].shape) for t in tensors if t.op.type == "Shape"}
    rest = [tensor for tensor in tensors if tensor.ref() not in shapes]
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run(rest, kept)
    return shapes | {t.ref(): np.asarray(v) for t, v in zip(rest, found, strict=True)}
