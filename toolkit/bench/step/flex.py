"""TensorFlow's documented way to train on a device: its gradients, run by the Flex delegate.

Runs in a separate environment, because TensorFlow 2.18 is the last that runs Flex from pip:
    python -m toolkit.bench.step.flex convert TASK BRANCH TOPOLOGY BATCH OUT
    python -m toolkit.bench.step.flex run MODEL STEPS THREADS
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from toolkit import zoo
from toolkit.bench.step.reference import Network, Reference
from toolkit.bench.step.timing import timed_steps
from toolkit.branch.branch import Branch
from toolkit.training.inputs import training_inputs


class FlexModule(tf.Module):  # type: ignore[misc]
    """The reference step with plain variables, which the converter can track."""

    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch
        self.reference = Reference(branch)
        model = self.reference.online
        self.theta = [tf.Variable(v.numpy()) for v in model.trainable_variables]
        self.target = [tf.Variable(v.numpy()) for v in model.trainable_variables]
        # TFLite has no variables of the type of Keras' seeds. A constant seed draws masks too.
        self.rest = [tf.constant(v.numpy()) for v in model.non_trainable_variables]
        self.slots = [
            {slot: tf.Variable(tf.zeros(v.shape)) for slot in branch.learning.optimizer.slots}
            for v in self.theta
        ]
        self.step = tf.Variable(0.0)

    def train(self, **batch: tf.Tensor) -> dict[str, tf.Tensor]:
        theta = [v.read_value() for v in self.theta]
        with tf.GradientTape() as tape:
            tape.watch(theta)
            target = self._network([v.read_value() for v in self.target])
            loss = self.reference.loss(self._network(theta), target, **batch)
        step = self.step.read_value()
        for v, g, slots in zip(self.theta, tape.gradient(loss, theta), self.slots, strict=True):
            values = {name: slot.read_value() for name, slot in slots.items()}
            change, new = self.branch.learning.optimizer.update(g, values, step)
            v.assign_add(change)
            for name, value in new.items():
                slots[name].assign(value)
        self.step.assign(step + 1.0)
        return {"loss": loss}

    def sync_target(self) -> dict[str, tf.Tensor]:
        """Without this signature the converter would make the target network constant."""
        for target, v in zip(self.target, self.theta, strict=True):
            target.assign(v.read_value())
        return {"step": self.step.read_value()}

    def _network(self, theta: list[tf.Tensor]) -> Network:
        def call(x: tf.Tensor, training: bool = False) -> Any:
            model = self.reference.online
            y, _ = model.stateless_call(theta, self.rest, x, training=training)
            return y

        return call


def convert(branch: Branch, batch: int) -> bytes:
    """Returns the model; operations without a builtin become Flex operations."""
    module = FlexModule(branch)
    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, spec in training_inputs(branch, batch).items()
    }
    signatures = {
        "train": tf.function(module.train, autograph=False).get_concrete_function(**specs),
        "sync_target": tf.function(module.sync_target, autograph=False).get_concrete_function(),
    }
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=list(signatures)
        )
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS,
            tf.lite.OpsSet.SELECT_TF_OPS,
        ]
        converter.experimental_enable_resource_variables = True
        return bytes(converter.convert())


def run(model: Path, steps: int, threads: int) -> dict[str, object]:
    """Times the model in TensorFlow's own interpreter, which has the Flex delegate."""
    interpreter = tf.lite.Interpreter(model_path=str(model), num_threads=threads)
    train = interpreter.get_signature_runner("train")
    specs = {
        name: (tuple(detail["shape"]), detail["dtype"])
        for name, detail in train.get_input_details().items()
    }
    return timed_steps(lambda batch: float(train(**batch)["loss"]), specs, steps)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["convert", task, branch_name, topology, batch_size, out]:
            branch = zoo.build(task, branch_name, topology)
            Path(out).write_bytes(convert(branch, int(batch_size)))
        case ["run", model_path, steps, threads]:
            print(json.dumps(run(Path(model_path), int(steps), int(threads))))
        case _:
            sys.exit(__doc__)
