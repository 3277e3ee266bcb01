"""Private parts of TensorFlow Lite that this project uses, all of them.

- `schema`: the classes generated from TFLite's flatbuffer schema. TensorFlow installs them and
  documents no public name for them; there is no other way to read or to change a model.
- the SavedModel converter behind `tf.lite.TFLiteConverter`: see `convert_saved_model`.
- a switch of the quantiser without a public counterpart: see `quantise_dense_per_tensor`.

tests/toolkit/conversion/test_tflite_internals.py fails when one of them changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.lite.python import convert as _convert
from tensorflow.lite.python import lite as _lite
from tensorflow.lite.python import schema_py_generated as schema

__all__ = ["convert_saved_model", "quantise_dense_per_tensor", "schema"]


def convert_saved_model(folder: str, signatures: Sequence[str]) -> bytes:
    """What `tf.lite.TFLiteConverter` returns, in 60 % of its time; builtin operations only.

    The public converter loads the SavedModel twice, for its own statistics, and parses its result
    three times.
    """
    converter = _lite.TFLiteSavedModelConverterV2(
        folder, {tf.saved_model.SERVING}, list(signatures)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.experimental_enable_resource_variables = True
    flags = converter._get_base_converter_args()
    return bytes(_convert.convert_saved_model(enable_tflite_resource_variables=True, **flags))


def quantise_dense_per_tensor(converter: Any) -> None:
    """Gives the kernel of a dense layer one scale instead of one for each unit.

    tflite-runtime 2.14 cannot read more in a model of dynamic quantisation, and no public option
    of `tf.lite.TFLiteConverter` says so.
    """
    switch = "_experimental_disable_per_channel_quantization_for_dense_layers"
    if not hasattr(converter, switch):  # setting an attribute that nothing reads would pass
        raise AttributeError(f"this version of TensorFlow has no option {switch}.")
    setattr(converter, switch, True)
