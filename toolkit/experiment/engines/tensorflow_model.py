"""The training functions before conversion, run by TensorFlow: several times faster on a PC.

Traced programs, losses, optimisers and signatures are those of `model.tflite`. Convolutions and
gradients are TensorFlow's own, because it supports convolutions with variable weights; a test
compares both engines. Dropout draws exactly the numbers that the TFLite runtime draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.runtime import Model
from toolkit.autodiff.program import Node, Program, Value
from toolkit.autodiff.rules import RULES
from toolkit.autodiff.rules.convolution import plain_convolution
from toolkit.autodiff.rules.random import RULES as RANDOM_RULES
from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ
from toolkit.conversion.signature import Tensors
from toolkit.training.double_q import double_q_loss, double_q_target
from toolkit.training.module import TARGET, TrainingModule

_PHILOX = 1  # TensorFlow's number of the algorithm
_NUMBERS_PER_COUNT = 4  # random numbers for one value of Philox's counter


class TensorFlowModule(TrainingModule):
    """A branch's functions with TensorFlow's own convolutions and gradients."""

    def __init__(self, branch: Branch, *, batch: int) -> None:
        super().__init__(branch, batch=batch, runtime="tflite-runtime", whole=True)
        self.stream = tf.Variable(1, dtype=tf.int64)
        self.drawn = tf.Variable(0, dtype=tf.int64)  # steps taken in this stream

    def evaluate(self, x: tf.Tensor, y: tf.Tensor | None = None) -> Tensors:
        program = self.batch_program
        tensors = self._replay(program, self.read(self.model_variables), x)
        return self._measures(tensors[self.loss_at(program)], x, y)

    def use_random_stream(self, number: int) -> None:
        self.stream.assign(number)
        self.drawn.assign(0)

    def _differentiate(
        self, theta: Tensors, divisor: int, **batch: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        program, learning = self.training_program, self.branch.learning
        plays = isinstance(learning, DoubleQ)
        trained = {name: theta[name] for name in self.trained_variables}
        with tf.GradientTape() as tape:
            tape.watch(list(trained.values()))
            tensors = self._replay(program, theta, batch["obs" if plays else "x"])
        if isinstance(learning, DoubleQ):
            target, delta = self._target(learning, theta, **batch), learning.huber_delta
            losses, seeds = self.at_outputs(
                tensors, lambda q: double_q_loss(q, batch["action"], target, delta)
            )
        else:
            losses, seeds = self.at_outputs(tensors, lambda z: self._loss(z, **batch))
        outputs = [tensors[value] for value in seeds]
        scaled = [seed * (1.0 / divisor) for seed in seeds.values()]
        found = tape.gradient(outputs, trained, output_gradients=scaled)
        for name, value in program.updates.items():
            self.store[name].assign(tensors[value])
        self.drawn.assign_add(1)
        return tf.reduce_mean(losses), [g.join(found) for g in self.groups]

    def _target(
        self,
        learning: DoubleQ,
        theta: Tensors,
        *,
        reward: tf.Tensor,
        next_obs: tf.Tensor,
        done: tf.Tensor,
        **_: tf.Tensor,
    ) -> tf.Tensor:
        ahead = self.batch_program
        online = self._replay(ahead, theta, next_obs)[ahead.y]
        delayed = self._replay(ahead, self.read(self.model_variables, TARGET), next_obs)[ahead.y]
        return double_q_target(reward, done, online, delayed, learning.discount)

    def _replay(
        self, program: Program, theta: Mapping[str, tf.Tensor], x: tf.Tensor
    ) -> dict[Value, tf.Tensor]:
        """Computes all nodes in order, all but convolutions and random numbers by their rules."""
        tensors: dict[Value, tf.Tensor] = {program.x: x, **program.constants}
        tensors |= {v: theta[name] for name, v in program.parameters.items() if name in theta}
        for node in program.nodes:
            inputs = [tensors[value] for value in node.inputs]
            if node.op == "Conv2D":
                y = plain_convolution(node, *inputs)
            elif node.op in RANDOM_RULES:
                y = self._draw(node, *inputs)
            else:
                y, _ = RULES[node.op](node, *inputs)
            tensors[node.output] = y
        return tensors

    def _draw(self, node: Node, shape: Any) -> tf.Tensor:
        """Returns what the runtime's RANDOM_UNIFORM returns in step `drawn` of the stream."""
        if node.op != "StatelessRandomUniformV2":
            raise NotImplementedError(f"layer {node.layer!r} draws with {node.op}")
        values = -(-int(np.prod(shape)) // _NUMBERS_PER_COUNT)
        return tf.raw_ops.StatelessRandomUniformV2(
            shape=tf.constant(shape, tf.int32),
            key=tf.constant([_seed(node, shape)], tf.uint64),
            counter=tf.cast(tf.stack([self.drawn * values, self.stream]), tf.uint64),
            alg=_PHILOX,
        )


def _seed(node: Node, shape: Any) -> int:
    """The seed that the node's rule writes into `model.tflite`."""
    with tf.Graph().as_default():
        drawn, _ = RULES[node.op](node, shape)
    seed: int = drawn.op.get_attr("seed")
    return seed


class TensorFlowModel(Model):
    """Has the interface of a loaded `model.tflite`, so that an agent can train it."""

    def __init__(self, branch: Branch, *, batch: int) -> None:
        self.runtime = "tensorflow"
        self._training = TensorFlowModule(branch, batch=batch)
        self._signatures = self._training.signatures()
        self._runners, self._inputs = {}, {}

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        return tuple(self._signatures)

    def inputs(self, signature: str) -> Mapping[str, TensorSpec]:
        if signature not in self._inputs:
            self._inputs[signature] = {
                name: TensorSpec(tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype))
                for name, spec in self._signatures[signature].inputs.items()
            }
        return self._inputs[signature]

    def use_random_stream(self, number: int) -> None:
        """From now on dropout draws the numbers of this stream, from its beginning."""
        self._training.use_random_stream(number)

    def _runner(self, signature: str) -> Any:
        if signature not in self._runners:
            plain = self._signatures[signature].function
            # One dictionary, because 'conv1/kernel' cannot be the name of an argument.
            function = tf.function(lambda values: plain(**values), autograph=False)

            def run(**inputs: Any) -> dict[str, Any]:
                answer = function({name: tf.constant(v) for name, v in inputs.items()})
                return {name: value.numpy() for name, value in answer.items()}

            self._runners[signature] = run
        return self._runners[signature]
