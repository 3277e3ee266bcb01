"""Keras model → Program: trace once, fold constants, keep only what the outputs need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.naming import named_variables
from toolkit.autodiff.nested_layers import nested_layers, output_of
from toolkit.autodiff.program import Node, Program, Value
from toolkit.errors import ModelError, UnsupportedOp

# Operations that only pass tensors on.
_TRANSPARENT = frozenset({"Identity", "IdentityN", "PreventGradient", "Snapshot", "CheckNumerics"})
# All of them become `Reshape`, whose target is the shape of its output.
_RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims"})
# Their seeds come from Keras' seed generators; the device draws its own numbers instead.
_RANDOM = frozenset({"StatelessRandomUniformV2", "StatelessRandomNormalV2"})
_SYNONYMS = {"Add": "AddV2", "BatchMatMul": "BatchMatMulV2", "Div": "RealDiv"}


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
    graph = tf.Graph()
    with graph.as_default():
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

    def new(tensor: tf.Tensor) -> Value:
        nonlocal count
        if not tensor.shape.is_fully_defined():
            layer = _layer(tensor.op, model)
            raise ModelError(f"layer {layer!r} has a shape that is unknown until it runs.")
        count += 1
        value = Value(count, tuple(tensor.shape), tensor.dtype.name)
        values[tensor.ref()] = value
        return value

    source = new(x)
    stored = {name: new(tensor) for name, tensor in parameters.items()}
    constant_ops = _constant_ops(graph)
    needed = _needed([y, *updates.values()], constant_ops)
    for op in graph.get_operations():
        if op in needed and any(t.dtype in (tf.variant, tf.resource) for t in op.outputs):
            raise UnsupportedOp(_layer(op, model), op.type)  # a recurrent layer's lists
    folded = _fold(graph, needed, constant_ops)
    for op in graph.get_operations():  # TensorFlow keeps them in topological order
        if op not in needed or op.type == "Placeholder":
            continue
        if op in constant_ops:
            for tensor in op.outputs:
                constants[new(tensor)] = folded[tensor.ref()]
        elif op.type in _TRANSPARENT:
            for before, after in zip(op.inputs, op.outputs, strict=True):
                if before.ref() in values:
                    values[after.ref()] = values[before.ref()]
        elif len(op.outputs) != 1:
            raise UnsupportedOp(_layer(op, model), op.type, "it has several outputs")
        elif op.type in _RESHAPES:
            before = values[op.inputs[0].ref()]
            origin = unreshaped.get(before, before)
            if origin.shape == tuple(op.outputs[0].shape):
                values[op.outputs[0].ref()] = origin
            else:
                after = new(op.outputs[0])
                unreshaped[after] = origin
                nodes.append(Node("Reshape", _layer(op, model), (origin,), after, {}))
        else:
            inputs = tuple(values[tensor.ref()] for tensor in _inputs(op))
            kind = _SYNONYMS.get(op.type, op.type)
            nodes.append(Node(kind, _layer(op, model), inputs, new(op.outputs[0]), _attributes(op)))
    return Program(
        x=source,
        y=values[y.ref()],
        early=None if early is None else values[early.ref()],
        parameters=stored,
        updates={name: values[tensor.ref()] for name, tensor in updates.items()},
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
    for op in graph.get_operations():
        from_constants = op.inputs and all(tensor.op in constant for tensor in op.inputs)
        static_shape = op.type == "Shape" and op.inputs[0].shape.is_fully_defined()
        if op.type == "Const" or static_shape or (from_constants and op.type not in _RANDOM):
            constant.add(op)
    return constant


def _needed(outputs: Iterable[tf.Tensor], constant: set[tf.Operation]) -> set[tf.Operation]:
    """What the outputs depend on; behind a constant nothing is needed."""
    needed: set[tf.Operation] = set()
    waiting = [tensor.op for tensor in outputs]
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            if op not in constant:
                waiting.extend(tensor.op for tensor in _inputs(op))
    return needed


def _fold(
    graph: tf.Graph, needed: set[tf.Operation], constant: set[tf.Operation]
) -> dict[Any, npt.NDArray[Any]]:
    tensors = [tensor for op in needed & constant for tensor in op.outputs]
    shapes = {t.ref(): np.array(t.op.inputs[0].shape) for t in tensors if t.op.type == "Shape"}
    rest = [tensor for tensor in tensors if tensor.ref() not in shapes]
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run(rest)
    return shapes | {t.ref(): np.asarray(v) for t, v in zip(rest, found, strict=True)}


def _layer(op: tf.Operation, model: keras.Model) -> str:
    """The innermost Keras layer in whose scope the operation is: 'net_1/conv1_3/Relu' is in conv1.

    Keras enters a layer's scope twice in each call, first to build it, and TensorFlow numbers the
    entries from the second on. So an operation in 'dense_1' belongs to the layer dense, also where
    another layer is called dense_1.
    """
    scopes: list[str] = op.name.split("/")
    name, inside = scopes[0], model
    for scope in scopes[:-1]:
        layers = {layer.name: layer for layer in nested_layers(inside)}
        entered, _, number = scope.rpartition("_")
        if number.isdigit() and entered in layers:
            name, inside = entered, layers[entered]
    return name


def _attributes(op: tf.Operation) -> dict[str, Any]:
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
