"""The documented way to train on a device: TensorFlow's gradients, run by the Flex delegate.

Runs in an environment of its own, since TensorFlow 2.18 is the last that runs Flex from pip:
    python -m toolkit.bench.flex TASK BRANCH TOPOLOGY BATCH OUT
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from toolkit import zoo
from toolkit.branch import Branch
from toolkit.reference import Network, Reference
from toolkit.training.module import training_inputs


class FlexModule(tf.Module):  # type: ignore[misc]
    """The reference step over plain variables, which is what the converter can track."""

    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch
        self.reference = Reference(branch)
        model = branch.model
        self.theta = [tf.Variable(v.numpy()) for v in model.trainable_variables]
        self.rest = [tf.Variable(v.numpy()) for v in model.non_trainable_variables]
        self.target = [tf.Variable(v.numpy()) for v in model.trainable_variables]
        self.slots = [
            {slot: tf.Variable(tf.zeros(v.shape)) for slot in branch.learning.optimizer.slots}
            for v in self.theta
        ]
        self.step = tf.Variable(0.0)

    def train(self, **batch: tf.Tensor) -> dict[str, tf.Tensor]:
        theta = [v.read_value() for v in self.theta]
        with tf.GradientTape() as tape:
            tape.watch(theta)
            loss = self.reference.loss(self._network(theta), self._network(self.target), **batch)
        step = self.step.read_value()
        for v, g, slots in zip(self.theta, tape.gradient(loss, theta), self.slots, strict=True):
            change, new = self.branch.learning.optimizer.update(g, slots, step)
            v.assign_add(change)
            for name, value in new.items():
                slots[name].assign(value)
        self.step.assign(step + 1.0)
        return {"loss": loss}

    def _network(self, theta: list[tf.Tensor]) -> Network:
        def call(x: tf.Tensor, training: bool = False) -> tf.Tensor:
            y, _ = self.branch.model.stateless_call(theta, self.rest, x, training=training)
            return y

        return call


def convert(branch: Branch, batch: int) -> bytes:
    """Whatever is no builtin becomes a Flex operation."""
    module = FlexModule(branch)
    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, spec in training_inputs(branch, batch).items()
    }
    train = tf.function(module.train, autograph=False).get_concrete_function(**specs)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"train": train})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["train"])
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS,
            tf.lite.OpsSet.SELECT_TF_OPS,
        ]
        converter.experimental_enable_resource_variables = True
        return bytes(converter.convert())


if __name__ == "__main__":
    task, branch_name, topology, batch_size, out = sys.argv[1:]
    Path(out).write_bytes(convert(zoo.build(task, branch_name, topology), int(batch_size)))
