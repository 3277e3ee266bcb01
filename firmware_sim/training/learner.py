"""A branch in training: the model in its runtime, and the task it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from broker.protocol.slice import Slice, Tensors
from broker.protocol.wire import below
from firmware_sim.tensor_spec import Array
from firmware_sim.training.random_streams import stream_number
from firmware_sim.training.runtime import Model
from firmware_sim.training.task import Task

STEP = "optimizer/step"  # the tensor that counts the steps of training


class Learner:
    """Trains from a given θ_shared, and returns what it learnt."""

    def __init__(
        self, model: Model, task: Task, shared: Slice, *, device: str, sent: Slice | None = None
    ) -> None:
        """`device` makes the random numbers of dropout differ from those of other devices.

        `sent` are the shared tensors that it trains; the fleet only gives the others.
        """
        self.model = model
        self._device = device
        model.use_random_stream(stream_number(device))
        self.task = task
        self._shared = shared
        self._sent = frozenset(t.name for t in (shared if sent is None else sent).tensors)

    def fits(self, tensors: Tensors) -> bool:
        """Whether this θ_shared has every tensor of the slice, and only finite numbers."""
        return all(
            t.name in tensors
            and tensors[t.name].shape == t.shape
            and tensors[t.name].dtype == t.dtype
            and bool(np.isfinite(tensors[t.name]).all())
            for t in self._shared.tensors
        )

    def adopt(self, tensors: Tensors) -> None:
        """θ_shared ← tensors; those of other branches are ignored."""
        own = {t.name: tensors[t.name] for t in self._shared.tensors}
        self.model.call("set_shared", **own)
        self.task.synchronised(self.model)

    def shared(self) -> Tensors:
        return self.model.call("get_shared")

    def train(self, steps: int, exchange: str) -> Iterator[float]:
        """Trains `steps` mini-batches and yields their losses."""
        return self.task.train(self.model, steps, exchange)

    def learnt(self, base: Tensors, exchange: str) -> Tensors:
        """Returns, since θ_shared was `base`, Δ = θ_shared - base or dθ_shared = Σ ∂L/∂θ_shared."""
        if exchange == "gradient":
            found = self.model.call("apply")
            return {name: value for name, value in found.items() if name in self._sent}
        now = self.shared()
        return {name: now[name] - base[name] for name in now if name in self._sent}

    def evaluate(self) -> dict[str, float]:
        return self.task.evaluate(self.model)

    def state(self) -> dict[str, Array]:
        """Returns all that training depends on, optimiser slots included."""
        model = {f"model/{name}": value for name, value in self.model.call("get_state").items()}
        return model | {f"task/{name}": value for name, value in self.task.state().items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continues from `state`; dropout does not repeat the numbers that were drawn before."""
        model = below("model/", state)
        self.model.use_random_stream(stream_number(self._device, int(model[STEP])))
        self.model.call("set_state", **model)
        self.task.restore(below("task/", state))
