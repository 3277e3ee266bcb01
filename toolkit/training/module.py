"""Variables and signatures of a branch: what becomes `model.tflite`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from firmware_sim.training.learner import STEP
from toolkit.autodiff import Program, Tape, run
from toolkit.autodiff.blocks import in_blocks, large_kernels
from toolkit.autodiff.lower import Tuning, lower
from toolkit.autodiff.program import Value
from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ, Supervised
from toolkit.conversion.signature import Signature, Tensors
from toolkit.errors import ExportError
from toolkit.training.double_q import double_q_loss, double_q_target
from toolkit.training.groups import Group, group
from toolkit.training.losses import LOSSES
from toolkit.training.storage import Storage
from toolkit.tuning.files import shipped

ACCUMULATED = "accumulated"
TARGET = "target/"
Loss = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]  # of an output: values and gradients


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


class TrainingModule(tf.Module):  # type: ignore[misc]
    """One branch, one batch size, one runtime: everything that a device needs to train it.

    The state is the model's tensors, the optimiser's slots and the accumulated gradient (one of
    each for every group), and the target network; `store` holds the variables that it is kept in.

    A batch can be taken in micro-batches, which need less memory: `accumulate` for each of them,
    then `step`. That is the full batch's step, but for layers that look at a batch as a whole:
    batch normalisation takes its statistics from the micro-batch, dropout draws other masks.
    """

    def __init__(
        self,
        branch: Branch,
        *,
        batch: int,
        runtime: str,
        micro_batch: int | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Without a tuning, the one that ships for the runtime."""
        super().__init__()
        self.branch = branch
        self.batch = batch
        self.micro_batch = batch if micro_batch is None else micro_batch
        if self.micro_batch < 1 or batch % self.micro_batch:
            raise ExportError(
                f"a batch of {batch} cannot be taken in micro-batches of {self.micro_batch}."
            )
        used = tuning or shipped(runtime)

        def program(size: int, training: bool) -> Program:
            return lower(branch.trace(batch=size, training=training), used)

        traced = program(self.micro_batch, True)
        kernels = large_kernels(traced)
        self.training_program = in_blocks(traced, kernels.values())
        self.batch_program = in_blocks(program(self.micro_batch, False), kernels.values())
        self.single_program = in_blocks(program(1, False), kernels.values())
        model = dict(branch.weights())
        self.storage = Storage(kernels)
        self.model_variables = self.storage.variables(model)
        self.trained_variables = self.storage.variables(branch.trainable_names)
        held = self.storage.cut(model)
        self.groups = group(
            {name: tuple(value.shape) for name, value in held.items()},
            self.storage.variables(branch.shared_names),
            self.storage.variables(branch.local_names),
        )
        slots = {
            g.slot(kind): tf.zeros(g.shape)
            for kind in (*branch.learning.optimizer.slots, ACCUMULATED)
            for g in self.groups
        }
        state = {**model, **slots, STEP: tf.constant(0.0)}
        if isinstance(branch.learning, DoubleQ):
            self.storage = self.storage.beside(TARGET)
            state |= {TARGET + name: value for name, value in model.items()}
        self.state_shapes = {name: tuple(value.shape) for name, value in state.items()}
        self.store = {
            name: tf.Variable(value, name=f"v{i}")
            for i, (name, value) in enumerate(self.storage.cut(state).items())
        }

    def signatures(self) -> dict[str, Signature]:
        inputs = training_inputs(self.branch, self.micro_batch)
        frame = tf.TensorSpec((1, *self.branch.input_shape), self.branch.input_dtype)
        shared = self.branch.shared_names
        found = {
            "infer": Signature(self.infer, {"x": frame}),
            "train": Signature(self.train, inputs),
            "accumulate": Signature(self.accumulate, inputs),
            "apply": Signature(self.apply, {}),
            "get_shared": Signature(lambda: self.tensors(shared), {}),
            "set_shared": Signature(self.set, self._specs(shared)),
            "get_state": Signature(lambda: self.tensors(self.state_shapes), {}),
            "set_state": Signature(self.set, self._specs(self.state_shapes)),
        }
        if self.micro_batch < self.batch:
            found["step"] = Signature(self.step, {})
        if isinstance(self.branch.learning, DoubleQ):
            found["sync_target"] = Signature(self.sync_target, {})
        else:
            found["evaluate"] = Signature(self.evaluate, inputs)
        return found

    # --- signatures -------------------------------------------------------------------------

    def infer(self, x: tf.Tensor) -> Tensors:
        tape = run(self.single_program, self.read(self.model_variables), x)
        return {"output": tape[self.single_program.y]}

    def evaluate(self, x: tf.Tensor, y: tf.Tensor) -> Tensors:
        """Sums over the batch, so that batches add up; rows labelled -1 do not count."""
        tape = run(self.batch_program, self.read(self.model_variables), x)
        logits = tape[self.batch_program.logits()]
        losses, _ = self._loss(logits, y)
        sums = {"loss": tf.reduce_sum(losses)}
        if y.dtype == tf.int32:
            right = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), y)
            sums["correct"] = tf.reduce_sum(tf.cast(right, "float32"))
        return sums

    def train(self, **batch: tf.Tensor) -> Tensors:
        """One optimiser step on all trainable tensors, by the samples given and no others."""
        theta = self.read(self.model_variables)
        loss, gradients = self._differentiate(theta, self.micro_batch, **batch)
        self._advance(theta, self.groups, gradients)
        return {"loss": loss}

    def accumulate(self, **batch: tf.Tensor) -> Tensors:
        """dθ ← dθ + ∂L(B; θ)/∂θ (algorithm 1).

        Of a micro-batch of m it is m/|B| times its mean gradient, so that all of them together
        add the mean gradient of the batch B.
        """
        theta = self.read(self.model_variables)
        loss, gradients = self._differentiate(theta, self.batch, **batch)
        for g, gradient in zip(self.groups, gradients, strict=True):
            total = self.store[g.slot(ACCUMULATED)]
            total.assign(total.read_value() + gradient)
        return {"loss": loss}

    def step(self) -> Tensors:
        """One optimiser step on all trainable tensors by dθ, and clears dθ."""
        totals = self._take_accumulated()
        self._advance(self.read(self.trained_variables), self.groups, totals)
        return {"step": self.store[STEP].read_value()}

    def apply(self) -> Tensors:
        """Steps θ_local by dθ_local, returns dθ_shared, and clears dθ."""
        totals = self._take_accumulated()
        shared: Tensors = {}
        for g, total in zip(self.groups, totals, strict=True):
            if g.shared:
                shared |= g.cut(total)
        local = [(g, total) for g, total in zip(self.groups, totals, strict=True) if not g.shared]
        theta = self.read([name for g, _ in local for name in g.shapes])
        self._advance(theta, [g for g, _ in local], [total for _, total in local])
        return self.storage.join(shared, self.branch.shared_names)

    def sync_target(self) -> Tensors:
        """θ⁻ ← θ."""
        for name, value in self.read(self.model_variables).items():
            self.store[TARGET + name].assign(value)
        return {"step": self.store[STEP].read_value()}

    def set(self, **values: tf.Tensor) -> Tensors:
        """Replaces tensors; returns the number of optimiser steps taken so far."""
        for name, value in self.storage.cut(values).items():
            self.store[name].assign(value)
        return {"step": self.store[STEP].read_value()}

    def tensors(self, names: Iterable[str]) -> Tensors:
        """Tensors, by name."""
        names = tuple(names)
        return self.storage.join(self.read(self.storage.variables(names)), names)

    def read(self, names: Iterable[str], prefix: str = "") -> Tensors:
        """Variables, by name without the prefix."""
        return {name: self.store[prefix + name].read_value() for name in names}

    # --- one step ---------------------------------------------------------------------------

    def _differentiate(
        self, theta: Tensors, divisor: int, **batch: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Mean loss of the samples and, group by group, Σ_i ∂l_i/∂θ / divisor; moving statistics
        move on."""
        learning = self.branch.learning
        if isinstance(learning, DoubleQ):
            tape, losses, seeds = self._double_q(learning, theta, **batch)
        else:
            tape = run(self.training_program, theta, batch["x"])
            losses, seeds = self.at_outputs(tape.tensors, lambda z: self._loss(z, batch["y"]))
        seeds = {value: seed * (1.0 / divisor) for value, seed in seeds.items()}
        found = tape.gradients(seeds, self.trained_variables)
        for name, value in tape.updates().items():
            self.store[name].assign(value)
        return tf.reduce_mean(losses), [g.join(found) for g in self.groups]

    def _take_accumulated(self) -> list[tf.Tensor]:
        """dθ, group by group, which is then zero."""
        totals = [self.store[g.slot(ACCUMULATED)].read_value() for g in self.groups]
        for g, total in zip(self.groups, totals, strict=True):
            self.store[g.slot(ACCUMULATED)].assign(total * 0.0)
        return totals

    def _advance(
        self, theta: Tensors, groups: Sequence[Group], gradients: Sequence[tf.Tensor]
    ) -> None:
        """θ ← θ + update(gradient), group by group."""
        optimizer = self.branch.learning.optimizer
        step = self.store[STEP].read_value()
        for g, gradient in zip(groups, gradients, strict=True):
            slots = {slot: self.store[g.slot(slot)].read_value() for slot in optimizer.slots}
            change, moved = optimizer.update(gradient, slots, step)
            for slot, value in moved.items():
                self.store[g.slot(slot)].assign(value)
            for name, part in g.cut(change).items():
                self.store[name].assign(theta[name] + part)
        self.store[STEP].assign(step + 1.0)

    def at_outputs(
        self, tensors: Mapping[Value, tf.Tensor], loss: Loss
    ) -> tuple[tf.Tensor, dict[Value, tf.Tensor]]:
        """The loss of each example, summed over the outputs, and ∂L/∂output for each of them."""
        program = self.training_program
        outputs = [program.logits(), *([program.early] if program.early else [])]
        found = {output: loss(tensors[output]) for output in outputs}
        first, *more = (losses for losses, _ in found.values())
        return sum(more, start=first), {output: seed for output, (_, seed) in found.items()}

    def _loss(self, logits: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        assert isinstance(self.branch.learning, Supervised)
        return LOSSES[self.branch.learning.loss](logits, y)

    def _double_q(
        self,
        learning: DoubleQ,
        theta: Tensors,
        obs: tf.Tensor,
        action: tf.Tensor,
        reward: tf.Tensor,
        next_obs: tf.Tensor,
        done: tf.Tensor,
    ) -> tuple[Tape, tf.Tensor, dict[Value, tf.Tensor]]:
        ahead, q_values = self.batch_program, self.batch_program.y
        online = run(ahead, theta, next_obs)[q_values]
        delayed = run(ahead, self.read(self.model_variables, TARGET), next_obs)[q_values]
        target = double_q_target(reward, done, online, delayed, learning.discount)
        tape = run(self.training_program, theta, obs)
        delta = learning.huber_delta
        return tape, *self.at_outputs(
            tape.tensors, lambda q: double_q_loss(q, action, target, delta)
        )

    def _specs(self, names: Iterable[str]) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec(self.state_shapes[name], tf.float32) for name in names}
