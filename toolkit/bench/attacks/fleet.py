"""One fleet with lying devices: the product's learners and coordinator, without a network.

Ten devices train the lightweight branch of digits, all of which they share. Every update is
encoded and checked as the aggregator does it, so that no attack goes further than it could.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np

from broker.aggregator.contract import Contract
from broker.aggregator.slice_file import read_slice
from broker.errors import StepRefused
from broker.merging.coordinator import Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Delta
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Update, to_bytes
from broker.protocol.slice import Tensors
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import Examples, LabelledTask
from firmware_sim.training.learner import Learner
from firmware_sim.training.runtime import Model
from toolkit import zoo
from toolkit.bench.attacks.attackers import ATTACKS, Sent
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import Adam
from toolkit.conversion.convert import convert_module
from toolkit.experiment.supervised.splits import divide
from toolkit.export.onnx.slice import build_slice
from toolkit.training.module import TrainingModule

DEVICES = 10
BATCH = 16
LEARNING_RATE = 0.01  # ten times the branch's own, so that few rounds are enough
RUN = "attacks"
RUNTIME = "ai-edge-litert"  # the other one cannot live in one process with TensorFlow
SPLITS = {
    "equal": (dict.fromkeys(range(DEVICES), 1.0), "iid"),
    "unequal": ({k: 6.0 if k == 0 else 1.0 for k in range(DEVICES)}, "iid"),
    "by class": (dict.fromkeys(range(DEVICES), 1.0), "dirichlet:0.5"),
}


@dataclass(frozen=True)
class Case:
    """Who lies, how, and what stands against it."""

    attack: str | None  # None: nobody lies
    liars: int
    rule: MergeRule
    split: str = "equal"
    seed: int = 0


class Trainer:
    """Models of all devices, which every fleet begins anew."""

    def __init__(
        self, folder: Path, *, rounds: int, steps: int, learning_rate: float = LEARNING_RATE
    ) -> None:
        self._rounds, self._steps, self._learning_rate = rounds, steps, learning_rate
        branch = _branch(0, learning_rate)
        file = folder / "model.tflite"
        file.write_bytes(convert_module(TrainingModule(branch, batch=BATCH, runtime=RUNTIME)))
        self._models = [Model(file, runtime=RUNTIME, threads=1) for _ in range(DEVICES)]
        self._zeros = self._models[0].call("get_state")
        self._shared, _ = read_slice(build_slice(branch).SerializeToString())
        self._examples = read_digits()

    def accuracy(self, case: Case) -> float:
        """Returns the accuracy of θ_shared on the test set after the last round.

        The seed decides the start, who holds which examples, their order, and what attackers draw.
        """
        attack = ATTACKS[case.attack] if case.attack else None
        learners = self._learners(case)
        honest, liars = learners[: DEVICES - case.liars], learners[DEVICES - case.liars :]
        coordinator = _coordinator(case.rule, learners[0].shared())
        contract = Contract.of(self._shared, exchange="delta", run=RUN)
        rng = np.random.default_rng([case.seed, 1])
        try:
            for _ in range(self._rounds):
                shared = coordinator.state.shared
                known = [self._train(learner, shared) for learner in honest]
                sent = list(known)
                for learner in liars:
                    assert attack is not None
                    own = self._train(learner, shared)
                    sent += [attack.forge(own, known, rng) for _ in range(attack.identities)]
                _merge(coordinator, contract, sent)
        except (_Diverged, StepRefused):
            pass  # no round follows, as no device or aggregator goes on from there
        honest[0].adopt(coordinator.state.shared)
        return honest[0].evaluate()["accuracy"]

    def _learners(self, case: Case) -> list[Learner]:
        parts = self._parts(case.split, case.seed)
        start = {**self._zeros, **_branch(case.seed, self._learning_rate).weights()}
        flips = bool(case.attack) and ATTACKS[str(case.attack)].flips_labels
        learners: list[Learner] = []
        for k, (model, own) in enumerate(zip(self._models, parts, strict=True)):
            model.call("set_state", **start)
            if flips and k >= DEVICES - case.liars:
                own = Examples(own.x_train, 9 - own.y_train, own.x_test, own.y_test)
            task = LabelledTask(own, batch=BATCH, seed=DEVICES * case.seed + k)
            learners.append(Learner(model, task, self._shared, device=f"{case.seed} {k}"))
        return learners

    def _parts(self, split: str, seed: int) -> list[Examples]:
        weights, kind = SPLITS[split]
        whole, total = self._examples, sum(weights.values())
        fractions = {str(device): weight / total for device, weight in weights.items()}
        found = divide(whole.y_train, fractions, kind, seed)
        numbers = [np.concatenate([p.training, p.validation]) for p in found.values()]
        return [
            Examples(whole.x_train[own], whole.y_train[own], whole.x_test, whole.y_test)
            for own in numbers
        ]

    def _train(self, learner: Learner, shared: Tensors) -> Sent:
        learner.adopt(shared)
        base = learner.shared()
        for loss in learner.train(self._steps, "delta"):
            if not math.isfinite(loss):
                raise _Diverged
        learnt = learner.learnt(base, "delta")
        if not all(np.isfinite(value).all() for value in learnt.values()):
            raise _Diverged
        return Sent(learnt, learner.task.samples)


class _Diverged(Exception):
    """θ_shared is so far off that a device cannot train from it."""


def _branch(seed: int, learning_rate: float) -> Branch:
    """The lightweight branch, untrained; the seed decides its weights."""
    keras.utils.set_random_seed(seed)
    branch = zoo.build("digits", "lightweight", "cascading")
    assert isinstance(branch.learning, Supervised)
    assert isinstance(branch.learning.optimizer, Adam)
    optimizer = replace(branch.learning.optimizer, learning_rate=learning_rate)
    return replace(branch, learning=replace(branch.learning, optimizer=optimizer))


def _coordinator(rule: MergeRule, start: Tensors) -> Synchronous:
    settings = Settings(mode="sync", merge=rule, optimizer=Delta(), quorum=rule.fewest)
    return Synchronous(settings, State(RUN, 0, start, {}), 0.0)


def _merge(coordinator: Synchronous, contract: Contract, sent: Sequence[Sent]) -> None:
    for k, update in enumerate(sent):
        device = f"device-{k}"
        payload = to_bytes(
            Update(
                device=device,
                run=RUN,
                round=coordinator.state.round,
                nonce=device,
                samples=update.samples,
                exchange="delta",
                fingerprint=contract.fingerprint,
                tensors=update.tensors,
            )
        )
        coordinator.offer(contract.check_update(payload, device))
    coordinator.close(0.0)
