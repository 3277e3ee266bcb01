"""`infer.tflite`: inference only, with constant weights, quantised as the profile states."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.unrolling import unrolled
from toolkit.branch.branch import Branch
from toolkit.conversion.tflite_internals import quantise_dense_per_tensor, schema
from toolkit.errors import ExportError

Images = npt.NDArray[Any]


def convert_inference(branch: Branch, quantisation: str, calibration: Images) -> bytes:
    """One example in, the branch's output out; takes what the signature `infer` takes.

    float16 and dynamic store the weights smaller; int8 computes in integers, with ranges taken
    from the calibration examples.
    """
    as_integers = quantisation == "int8" and branch.input_dtype == "uint8"
    # Integer arithmetic starts at the input: the converter replaces a float one by its bytes.
    dtype = "float32" if as_integers else branch.input_dtype
    model = branch.model
    trainable = [tf.constant(v.numpy()) for v in model.trainable_variables]
    rest = [tf.constant(v.numpy()) for v in model.non_trainable_variables]

    def infer(x: tf.Tensor) -> dict[str, tf.Tensor]:
        scaled = tf.cast(x, "float32") * branch.input_scale
        with unrolled(model):  # the calibration of int8 ends the process where it meets a loop
            return {"output": model.stateless_call(trainable, rest, scaled, training=False)[0]}

    frame = tf.TensorSpec((1, *branch.input_shape), dtype, name="x")
    return convert_constant(
        "infer", infer, frame, quantisation, calibration, as_integers=as_integers
    )


def convert_constant(
    name: str,
    function: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    frame: tf.TensorSpec,
    quantisation: str,
    calibration: Images,
    *,
    as_integers: bool,
) -> bytes:
    """A function without variables as the signature `name` of a file."""
    signature = tf.function(function, autograph=False).get_concrete_function(frame)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(tf.Module(), folder, signatures={name: signature})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[name])
        if quantisation != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantisation == "dynamic":
            quantise_dense_per_tensor(converter)
        if quantisation == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if quantisation == "int8":
            converter.representative_dataset = lambda: _examples(calibration, frame)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            if as_integers:
                converter.inference_input_type = tf.uint8
        try:
            data = bytes(converter.convert())
        except Exception as error:  # the converter documents no type of error
            raise ExportError(f"the converter cannot quantise the branch: {error}") from error
    return _with_plain_bytes(data) if as_integers else data


def _with_plain_bytes(data: bytes) -> bytes:
    """Makes byte b of the input mean b.

    The converter spreads the calibrated range over all 256 values of a byte, so that the 16 of a
    digit would mean 1. The first operation rescales to what the model computes with.
    """
    found = bytearray(data)
    graph = schema.Model.GetRootAs(found).Subgraphs(0)
    quantisation = graph.Tensors(graph.Inputs(0)).Quantization()
    quantisation.ScaleAsNumpy()[:] = 1.0  # both are views of the bytes
    quantisation.ZeroPointAsNumpy()[:] = 0
    return bytes(found)


def _examples(images: Images, frame: tf.TensorSpec) -> Iterator[list[Images]]:
    """Batches of the frame's size; the last one is filled up with the first images."""
    size = frame.shape[0]
    for start in range(0, len(images), size):
        chosen = np.arange(start, start + size) % len(images)
        yield [images[chosen].astype(frame.dtype.as_numpy_dtype)]


def synthetic_examples(branch: Branch, count: int = 64) -> Images:
    """Smooth random images that use the input's whole range: better than noise, less than data."""
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(count, *branch.input_shape)).astype(np.float32)
    for axis in range(1, walk.ndim - 1):
        walk = np.cumsum(walk, axis)
    low, high = walk.min(), walk.max()
    unit = (walk - low) / (high - low)
    if branch.input_dtype == "uint8":
        return np.asarray(np.round(unit / branch.input_scale), np.uint8)
    return np.asarray(unit / branch.input_scale, np.float32)
