"""Variables and signatures of a branch: what becomes `model.tflite`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from firmware_sim.bundle.manifest import FEATURES
from firmware_sim.training.learner import STEP
from firmware_sim.training.prefixed import EXAMPLES
from toolkit.autodiff import Program, Tape, run
from toolkit.autodiff.blocks import in_blocks, large_kernels
from toolkit.autodiff.lower import Tuning, lower
from toolkit.autodiff.program import Value
from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ, Supervised
from toolkit.branch.programs import programs_of
from toolkit.conversion.signature import Function, Signature, Tensors
from toolkit.errors import ExportError
from toolkit.training.clipping import clipped
from toolkit.training.double_q import double_q_loss, double_q_target
from toolkit.training.groups import Group, group
from toolkit.training.inputs import training_inputs
from toolkit.training.losses import loss_of, mean_of_each
from toolkit.training.storage import Storage
from toolkit.tuning.files import shipped

ACCUMULATED = "accumulated"
TARGET = "target/"
Loss = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]  # of an output: values and gradients


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
        whole: bool = False,
    ) -> None:
        """Without a tuning, the one that ships for the runtime.

        If the branch begins with frozen layers, the signatures take what these make of examples,
        the features of a prefix, unless the `whole` branch is to be in one file.
        """
        super().__init__()
        self.branch = branch
        self.batch = batch
        self.micro_batch = batch if micro_batch is None else micro_batch
        if self.micro_batch < 1 or batch % self.micro_batch:
            raise ExportError(
                f"a batch of {batch} cannot be taken in micro-batches of {self.micro_batch}."
            )
        used, trained = tuning or shipped(runtime), branch.trainable_names
        self.programs = programs_of(branch, self.micro_batch, whole=whole)
        traced = lower(self.programs.training, used, trained)
        kernels = large_kernels(traced)

        def program(given: Program) -> Program:
            return in_blocks(lower(given, used, trained), kernels.values())

        self.training_program = in_blocks(traced, kernels.values())
        self.batch_program = program(self.programs.inference)
        self.single_program = program(self.programs.single)
        frozen = self.programs.frozen
        model = {name: v for name, v in branch.weights().items() if name not in frozen}
        self.storage = Storage(kernels)
        self.model_variables = self.storage.variables(model)
        self.trained_variables = self.storage.variables(branch.trainable_names)
        held = self.storage.cut(model)
        self.groups = group(
            {name: tuple(value.shape) for name, value in held.items()},
            self.storage.variables(branch.sent_names),
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
            "infer": self._of_examples(self.infer, {"x": frame}),
            "train": self._of_examples(self.train, inputs),
            "accumulate": self._of_examples(self.accumulate, inputs),
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
            found["evaluate"] = self._of_examples(self.evaluate, inputs)
        return found

    def _of_examples(self, function: Function, inputs: Mapping[str, tf.TensorSpec]) -> Signature:
        """A signature that takes features instead of examples, if there is a prefix."""
        if self.programs.cut is None:
            return Signature(function, inputs)
        row = self.training_program.x.shape[1:]
        specs = {
            (name + FEATURES if name in EXAMPLES else name): (
                tf.TensorSpec((spec.shape[0], *row), tf.float32) if name in EXAMPLES else spec
            )
            for name, spec in inputs.items()
        }
        return Signature(
            lambda **given: function(**{n.removesuffix(FEATURES): v for n, v in given.items()}),
            specs,
        )

    # --- signatures -------------------------------------------------------------------------

    def infer(self, x: tf.Tensor) -> Tensors:
        tape = run(self.single_program, self.read(self.model_variables), x)
        return {"output": tape[self.single_program.y]}

    def evaluate(self, x: tf.Tensor, y: tf.Tensor | None = None) -> Tensors:
        """What the measures of a batch are computed from.

        Of classes, sums over the batch, where a label of -1 does not count, and the classes that
        are predicted. Of numbers, the means of each example.
        """
        tape = run(self.batch_program, self.read(self.model_variables), x)
        return self._measures(tape[self.loss_at(self.batch_program)], x, y)

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
        """Steps θ_local by dθ_local, returns dθ_shared of what is trained, and clears dθ."""
        totals = self._take_accumulated()
        shared: Tensors = {}
        for g, total in zip(self.groups, totals, strict=True):
            if g.shared:
                shared |= g.cut(total)
        local = [(g, total) for g, total in zip(self.groups, totals, strict=True) if not g.shared]
        theta = self.read([name for g, _ in local for name in g.shapes])
        self._advance(theta, [g for g, _ in local], [total for _, total in local])
        if not shared:  # a receiver; a signature has at least one output
            return {"step": self.store[STEP].read_value()}
        return self.storage.join(shared, self.branch.sent_names)

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
            losses, seeds = self.at_outputs(tape.tensors, lambda z: self._loss(z, **batch))
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
        """θ ← θ · (1 - η·decay) + update(clipped gradient), group by group."""
        optimizer = self.branch.learning.optimizer
        step = self.store[STEP].read_value()
        kept = (
            1.0 - optimizer.rate(step) * optimizer.weight_decay if optimizer.weight_decay else None
        )
        limited = clipped(optimizer, groups, gradients, self.storage.tensor)
        for g, gradient in zip(groups, limited, strict=True):
            slots = {slot: self.store[g.slot(slot)].read_value() for slot in optimizer.slots}
            change, moved = optimizer.update(gradient, slots, step)
            for slot, value in moved.items():
                self.store[g.slot(slot)].assign(value)
            for name, part in g.cut(change).items():
                before = theta[name] if kept is None else theta[name] * kept
                self.store[name].assign(before + part)
        self.store[STEP].assign(step + 1.0)

    def at_outputs(
        self, tensors: Mapping[Value, tf.Tensor], loss: Loss
    ) -> tuple[tf.Tensor, dict[Value, tf.Tensor]]:
        """The loss of each example, summed over the outputs, and ∂L/∂output for each of them."""
        program = self.training_program
        outputs = [self.loss_at(program), *([program.early] if program.early else [])]
        found = {output: loss(tensors[output]) for output in outputs}
        first, *more = (losses for losses, _ in found.values())
        return sum(more, start=first), {output: seed for output, (_, seed) in found.items()}

    def loss_at(self, program: Program) -> Value:
        """Where the loss is taken: cross-entropies before what closes, as Q-learning."""
        learning = self.branch.learning
        if isinstance(learning, Supervised) and learning.loss == "binary_cross_entropy":
            return program.fed_to("Sigmoid")
        numbers = isinstance(learning, Supervised) and learning.loss != "cross_entropy"
        return program.y if numbers else program.logits()

    def _loss(
        self, output: tf.Tensor, x: tf.Tensor, y: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        assert isinstance(self.branch.learning, Supervised)
        return loss_of(self.branch.learning, output, self._wanted(x, y))

    @property
    def is_binary(self) -> bool:
        """Whether it learns probabilities, each by itself."""
        learning = self.branch.learning
        return isinstance(learning, Supervised) and learning.loss == "binary_cross_entropy"

    def _measures(self, output: tf.Tensor, x: tf.Tensor, y: tf.Tensor | None) -> Tensors:
        losses, _ = self._loss(output, x, y)
        wanted = self._wanted(x, y)
        if wanted.dtype == tf.int32:
            predicted = tf.argmax(output, -1, output_type=tf.int32)
            if predicted.shape != wanted.shape:
                predicted = tf.reshape(predicted, wanted.shape)
            right = tf.cast(tf.equal(predicted, wanted), "float32")
            return {
                "loss": tf.reduce_sum(losses),
                "correct": tf.reduce_sum(right),
                "predicted": predicted,
            }
        error = (tf.sigmoid(output) if self.is_binary else output) - wanted
        return {
            "loss": losses,
            "absolute_error": mean_of_each(tf.abs(error)),
            "squared_error": mean_of_each(error * error),
        }

    def _wanted(self, x: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
        """The target; of an autoencoder what it takes, as the model sees it."""
        if y is not None:
            return y
        seen, scale = tf.cast(x, "float32"), self.branch.input_scale
        return seen if scale == 1.0 else seen * scale

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
