"""`predict.tflite`: inference of one example, with the weights as inputs of the graph.

A device gives it its newest weights at the end of every round, while `model.tflite` trains on.
Without weights in it the file is small.
"""

from __future__ import annotations

import tensorflow as tf

from toolkit.autodiff import run
from toolkit.conversion.convert import convert_module
from toolkit.conversion.signature import Signature, Tensors
from toolkit.training.module import TrainingModule


def predicted_weights(module: TrainingModule) -> list[str]:
    """Returns the names of the weights that it takes: all that may change."""
    return [name for name in module.branch.weights() if name not in module.programs.frozen]


def convert_prediction(module: TrainingModule) -> bytes:
    """Returns the file: the program of the signature `infer`, and for classes probabilities."""
    branch, program = module.branch, module.single_program
    if module.programs.cut is None:
        takes = tf.TensorSpec((1, *branch.input_shape), branch.input_dtype)
    else:  # the features that `prefix.tflite` makes of an example
        takes = tf.TensorSpec((1, *module.training_program.x.shape[1:]), tf.float32)

    def infer(x: tf.Tensor, **weights: tf.Tensor) -> Tensors:
        tape = run(program, module.storage.cut(weights), x)
        closed = module.loss_at(program) != program.y  # by a softmax or a sigmoid
        found = {"output": tape[program.y]}
        if module.is_binary and not closed:  # what is learnt are probabilities
            found["output"] = tf.sigmoid(tape[program.y])
        if branch.target is not None and branch.target.is_class and not closed:
            found["probabilities"] = tf.nn.softmax(tape[program.y])
        return found

    class Prediction(tf.Module):  # type: ignore[misc]
        def signatures(self) -> dict[str, Signature]:
            weights = {
                name: tf.TensorSpec(module.state_shapes[name], tf.float32)
                for name in predicted_weights(module)
            }
            return {"infer": Signature(infer, {"x": takes, **weights})}

    return convert_module(Prediction())
