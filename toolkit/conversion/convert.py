"""Training module → TFLite flatbuffer, with builtin operations only."""

from __future__ import annotations

import tempfile

import tensorflow as tf

from toolkit.conversion.rewrite import rewrite
from toolkit.conversion.signature import Convertible, Signature
from toolkit.conversion.tflite_internals import convert_saved_model
from toolkit.errors import ExportError


def convert_module(module: Convertible) -> bytes:
    """`model.tflite`: every signature over one set of resource variables."""
    functions = {name: _Numbered(s) for name, s in module.signatures().items()}
    concrete = {name: function.concrete() for name, function in functions.items()}
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(module, folder, signatures=concrete, options=options)
        try:
            data = convert_saved_model(folder, list(concrete))
        except Exception as error:  # the converter documents no type of error
            raise ExportError(f"the TFLite converter refused the branch: {error}") from error

    return rewrite(data, {name: (f.inputs, f.outputs) for name, f in functions.items()})


class _Numbered:
    """A signature under numbered names, since 'conv1/kernel' is no identifier."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.inputs = {f"i{n}": name for n, name in enumerate(signature.inputs)}
        self.outputs: dict[str, str] = {}

    def __call__(self, **arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        results = self.signature.function(**{self.inputs[n]: v for n, v in arguments.items()})
        self.outputs = {f"o{n}": name for n, name in enumerate(results)}
        return dict(zip(self.outputs, results.values(), strict=True))

    def concrete(self) -> tf.types.experimental.ConcreteFunction:
        specs = {
            number: tf.TensorSpec(spec.shape, spec.dtype, name=number)
            for number, spec in zip(self.inputs, self.signature.inputs.values(), strict=True)
        }
        return tf.function(self.__call__, autograph=False).get_concrete_function(**specs)
