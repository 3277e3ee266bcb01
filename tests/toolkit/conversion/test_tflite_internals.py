"""Private parts of TensorFlow Lite are still there, and do what this project needs of them."""

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.lite.python import convert, lite

from toolkit.conversion.tflite_internals import (
    convert_saved_model,
    quantise_dense_per_tensor,
    schema,
)

CHANGED = "TensorFlow has changed; mend toolkit/conversion/tflite_internals.py"


@pytest.fixture
def saved(tmp_path: Path) -> str:
    module = tf.Module()
    module.total = tf.Variable(3.0)

    def add(x: tf.Tensor) -> dict[str, tf.Tensor]:
        module.total.assign_add(x)
        return {"total": module.total.read_value()}

    spec = tf.TensorSpec((), tf.float32, name="x")
    signature = tf.function(add, autograph=False).get_concrete_function(spec)
    tf.saved_model.save(module, str(tmp_path), signatures={"add": signature})
    return str(tmp_path)


def test_the_schema_reads_and_writes_a_model(saved: str) -> None:
    for name in ("ModelT", "TensorT", "OperatorT", "OperatorCodeT", "BufferT", "BuiltinOperator"):
        assert hasattr(schema, name), CHANGED
    model = schema.ModelT.InitFromPackedBuf(convert_saved_model(saved, ["add"]), 0)
    assert [s.signatureKey for s in model.signatureDefs] == [b"add"]
    codes = {max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes}
    assert schema.BuiltinOperator.ASSIGN_VARIABLE in codes
    assert model.metadata is not None, "drop_labels removes it"


def test_the_converter_behind_the_public_one_writes_the_same_model(saved: str) -> None:
    assert hasattr(lite, "TFLiteSavedModelConverterV2"), CHANGED
    assert hasattr(lite.TFLiteSavedModelConverterV2, "_get_base_converter_args"), CHANGED
    assert hasattr(convert, "convert_saved_model"), CHANGED
    public = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=["add"])
    public.experimental_enable_resource_variables = True
    ours, theirs = (
        schema.ModelT.InitFromPackedBuf(data, 0).subgraphs
        for data in (convert_saved_model(saved, ["add"]), bytes(public.convert()))
    )
    assert [len(s.operators) for s in ours] == [len(s.operators) for s in theirs], CHANGED
    assert [len(s.tensors) for s in ours] == [len(s.tensors) for s in theirs], CHANGED


def test_the_switch_of_the_quantiser_exists(saved: str) -> None:
    converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=["add"])
    quantise_dense_per_tensor(converter)
    assert converter._experimental_disable_per_channel_quantization_for_dense_layers is True
    with pytest.raises(AttributeError, match="has no option"):
        quantise_dense_per_tensor(object())
