"""Variables and signatures of a branch: what becomes `model.tflite`.

Trainable tensors are kept apart, since the forward pass reads them one by one; the gradient, the
accumulated gradient and the optimiser's slots are flat vectors over all of them, shared tensors
first, so that dθ_shared is the head of the vector and dθ_local its tail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from toolkit.autodiff import Program, Tape, run, trace
from toolkit.autodiff.lower import lower
from toolkit.autodiff.rules.rule import nonzero
from toolkit.branch import Branch
from toolkit.training.learning import DoubleQ, Supervised
from toolkit.training.losses import cross_entropy, huber, mean_squared_error

Tensors = dict[str, tf.Tensor]
Function = Callable[..., Tensors]

ACCUMULATED = "optimizer/accumulated"
STEP = "optimizer/step"
TARGET = "target/"


@dataclass(frozen=True, eq=False)
class Signature:
    """A function over the module's variables, and the specification of its inputs by name."""

    function: Function
    inputs: Mapping[str, tf.TensorSpec]


def training_inputs(branch: Branch, batch: int) -> dict[str, tf.TensorSpec]:
    """What `train` takes: transitions for double Q-learning, otherwise examples."""
    frames = tf.TensorSpec((batch, *branch.input_shape), branch.input_dtype)
    number = tf.TensorSpec((batch,), tf.float32)
    choice = tf.TensorSpec((batch,), tf.int32)
    if isinstance(branch.learning, DoubleQ):
        return {
            "obs": frames,
            "action": choice,
            "reward": number,
            "next_obs": frames,
            "done": number,
        }
    if branch.learning.loss == "cross_entropy":
        return {"x": frames, "y": choice}
    return {"x": frames, "y": tf.TensorSpec((batch, *branch.model.output_shape[1:]), tf.float32)}


def _first_maximum(q: tf.Tensor) -> tf.Tensor:
    """onehot(argmax q), of equal ones the first; ARG_MAX would cut the graph that XNNPACK takes."""
    maxima = 1.0 - nonzero(tf.reduce_max(q, -1, keepdims=True) - q)
    earlier = tf.matmul(maxima, np.triu(np.ones([q.shape[-1]] * 2, np.float32), 1))
    return maxima * tf.nn.relu(1.0 - earlier)


def _cut(vector: tf.Tensor, sizes: list[int]) -> list[tf.Tensor]:
    """Consecutive pieces; SLICE, unlike SPLIT_V, is taken by XNNPACK."""
    starts = itertools.accumulate(sizes, initial=0)
    return [tf.slice(vector, [start], [n]) for start, n in zip(starts, sizes, strict=False)]


class TrainingModule(tf.Module):  # type: ignore[misc]
    """One branch, one batch size, one runtime: all that a device needs to train it."""

    def __init__(self, branch: Branch, *, batch: int, runtime: str) -> None:
        super().__init__()
        self.branch = branch
        self.batch = batch
        traced = {"input_dtype": branch.input_dtype, "input_scale": branch.input_scale}

        def program(size: int, training: bool) -> Program:
            return lower(trace(branch.model, batch=size, training=training, **traced), runtime)

        self.training_program = program(batch, True)
        self.batch_program = program(batch, False)
        self.single_program = program(1, False)
        weights = branch.weights()
        self.stored_names = tuple(weights)
        self.sizes = [math.prod(weights[name].shape) for name in branch.trainable_names]
        self.shared_size = sum(self.sizes[: len(branch.shared_names)])
        zeros = tf.zeros([sum(self.sizes)])
        initial = {
            **weights,
            **{f"optimizer/{slot}": zeros for slot in branch.learning.optimizer.slots},
            ACCUMULATED: zeros,
            STEP: tf.constant(0.0),
        }
        if isinstance(branch.learning, DoubleQ):
            initial |= {TARGET + name: value for name, value in weights.items()}
        self.store = {
            name: tf.Variable(value, name=f"v{i}") for i, (name, value) in enumerate(initial.items())
        }

    # --- reading and writing variables ------------------------------------------------------

    def read(self, prefix: str = "") -> Tensors:
        """The model's tensors, those of the target network with its prefix."""
        return {name: self.store[prefix + name].read_value() for name in self.stored_names}

    def write(self, values: Mapping[str, tf.Tensor]) -> None:
        for name, value in values.items():
            self.store[name].assign(value)

    def count(self) -> Tensors:
        """What a signature with nothing else to say answers: the steps taken so far."""
        return {"step": self.store[STEP].read_value()}

    # --- the arithmetic of a step -----------------------------------------------------------

    def gradient(self, tape: Tape, seed: tf.Tensor) -> tf.Tensor:
        """∂L/∂θ as one vector; seed is ∂L/∂logits."""
        names = self.branch.trainable_names
        found = tape.gradients(tape.program.logits(), seed, names)
        return tf.concat([tf.reshape(found[name], [-1]) for name in names], 0)

    def advance(self, theta: Tensors, gradient: tf.Tensor) -> None:
        """One optimiser step on all trainable tensors."""
        optimizer = self.branch.learning.optimizer
        slots = {slot: self.store[f"optimizer/{slot}"].read_value() for slot in optimizer.slots}
        change, slots = optimizer.update(gradient, slots, self.store[STEP].read_value())
        self.write({f"optimizer/{slot}": value for slot, value in slots.items()})
        self.move(theta, change, self.branch.trainable_names, self.sizes)

    def move(
        self, theta: Tensors, change: tf.Tensor, names: tuple[str, ...], sizes: list[int]
    ) -> None:
        """θ ← θ + change, tensor by tensor."""
        parts = _cut(change, sizes)
        for name, part in zip(names, parts, strict=True):
            self.store[name].assign(theta[name] + tf.reshape(part, theta[name].shape))
        self.store[STEP].assign(self.store[STEP].read_value() + 1.0)

    # --- signatures -------------------------------------------------------------------------

    def signatures(self) -> dict[str, Signature]:
        learning = self.branch.learning
        inputs = training_inputs(self.branch, self.batch)
        frame = tf.TensorSpec((1, *self.branch.input_shape), self.branch.input_dtype)
        found = {
            "infer": Signature(self.infer, {"x": frame}),
            "train": Signature(self.train, inputs),
            "accumulate": Signature(self.accumulate, inputs),
            "apply": Signature(self.apply, {}),
            "get_shared": Signature(lambda: self._get(self.branch.shared_names), {}),
            "set_shared": Signature(self._set, self._specs(self.branch.shared_names)),
            "get_state": Signature(lambda: self._get(tuple(self.store)), {}),
            "set_state": Signature(self._set, self._specs(tuple(self.store))),
        }
        if isinstance(learning, DoubleQ):
            found["sync_target"] = Signature(self.sync_target, {})
        else:
            found["evaluate"] = Signature(self.evaluate, inputs)
        return found

    def infer(self, x: tf.Tensor) -> Tensors:
        tape = run(self.single_program, self.read(), x)
        return {"output": tape[self.single_program.y]}

    def evaluate(self, x: tf.Tensor, y: tf.Tensor) -> Tensors:
        """Sums over the batch, so that batches add up; rows labelled -1 do not count."""
        program = self.batch_program
        tape = run(program, self.read(), x)
        losses, _ = self._loss(tape[program.logits()], y)
        answer = {"loss": tf.reduce_sum(losses)}
        if y.dtype == tf.int32:
            guesses = tf.argmax(tape[program.logits()], -1, output_type=tf.int32)
            answer["correct"] = tf.reduce_sum(tf.cast(tf.equal(guesses, y), "float32"))
        return answer

    def train(self, **batch: tf.Tensor) -> Tensors:
        theta = self.read()
        loss, gradient = self._step(theta, **batch)
        self.advance(theta, gradient)
        return {"loss": loss}

    def accumulate(self, **batch: tf.Tensor) -> Tensors:
        """dθ ← dθ + ∂L(B; θ)/∂θ (algorithm 1)."""
        loss, gradient = self._step(self.read(), **batch)
        self.store[ACCUMULATED].assign(self.store[ACCUMULATED].read_value() + gradient)
        return {"loss": loss}

    def apply(self) -> Tensors:
        """Steps θ_local by dθ_local, answers dθ_shared, and clears dθ."""
        total = self.store[ACCUMULATED].read_value()
        halves = [self.shared_size, sum(self.sizes) - self.shared_size]
        shared, local = _cut(total, halves)
        names, optimizer = self.branch.local_names, self.branch.learning.optimizer
        if names:
            kept, moved = {}, {}
            for slot in optimizer.slots:
                both = self.store[f"optimizer/{slot}"].read_value()
                kept[slot], moved[slot] = _cut(both, halves)
            change, moved = optimizer.update(local, moved, self.store[STEP].read_value())
            for slot in optimizer.slots:
                self.store[f"optimizer/{slot}"].assign(tf.concat([kept[slot], moved[slot]], 0))
            theta = {name: self.store[name].read_value() for name in names}
            self.move(theta, change, names, self.sizes[len(self.branch.shared_names) :])
        self.store[ACCUMULATED].assign(total * 0.0)
        shared_names = self.branch.shared_names
        parts = _cut(shared, self.sizes[: len(shared_names)])
        return {
            name: tf.reshape(part, self.store[name].shape)
            for name, part in zip(shared_names, parts, strict=True)
        }

    def sync_target(self) -> Tensors:
        """θ⁻ ← θ."""
        self.write({TARGET + name: value for name, value in self.read().items()})
        return self.count()

    def _get(self, names: tuple[str, ...]) -> Tensors:
        return {name: self.store[name].read_value() for name in names}

    def _set(self, **values: tf.Tensor) -> Tensors:
        self.write(values)
        return self.count()

    def _specs(self, names: tuple[str, ...]) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec(self.store[name].shape, tf.float32) for name in names}

    # --- one step, supervised or by double Q-learning ---------------------------------------

    def _step(self, theta: Tensors, **batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss and gradient of one mini-batch; moving statistics move on."""
        learning = self.branch.learning
        if isinstance(learning, DoubleQ):
            tape, losses, seed = self._double_q(learning, theta, **batch)
        else:
            tape = run(self.training_program, theta, batch["x"])
            losses, seed = self._loss(tape[self.training_program.logits()], batch["y"])
        gradient = self.gradient(tape, seed * (1.0 / self.batch))
        self.write(tape.updates())
        return tf.reduce_mean(losses), gradient

    def _loss(self, logits: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss = {"cross_entropy": cross_entropy, "mse": mean_squared_error, "huber": huber}
        assert isinstance(self.branch.learning, Supervised)
        return loss[self.branch.learning.loss](logits, y)

    def _double_q(
        self,
        learning: DoubleQ,
        theta: Tensors,
        obs: tf.Tensor,
        action: tf.Tensor,
        reward: tf.Tensor,
        next_obs: tf.Tensor,
        done: tf.Tensor,
    ) -> tuple[Tape, tf.Tensor, tf.Tensor]:
        """target = r + γ·(1 - done)·Q(s', argmax_a Q(s', a; θ); θ⁻);  L = huber(Q(s, a; θ) - target)."""
        ahead, output = self.batch_program, self.batch_program.y
        best = _first_maximum(run(ahead, theta, next_obs)[output])
        future = run(ahead, self.read(TARGET), next_obs)[output]
        value = tf.reduce_sum(future * best, -1, keepdims=True)
        reward, done = tf.reshape(reward, value.shape), tf.reshape(done, value.shape)
        target = reward + learning.discount * (1.0 - done) * value
        tape = run(self.training_program, theta, obs)
        taken = tf.one_hot(action, output.shape[-1])
        q = tf.reduce_sum(tape[self.training_program.y] * taken, -1, keepdims=True)
        losses, dq = huber(q, target, learning.huber_delta)
        return tape, losses, taken * dq
