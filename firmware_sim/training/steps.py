"""One training step on a whole batch, in micro-batches of the size that the model takes."""

from __future__ import annotations

from firmware_sim.errors import WrongInput
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model


def take_batch(model: Model, signature: str, **batch: Array) -> float:
    """Trains on a batch and returns its mean loss; `accumulate` as `signature` leaves θ unchanged.

    In a model with micro-batches `train` would change θ after each of them, so a batch is
    `accumulate` for each, then `step`. dθ of a batch is its mean gradient in any model.
    """
    in_parts = signature == "train" and "step" in model.signatures
    called = "accumulate" if in_parts else signature
    size = len(next(iter(batch.values())))
    micro = next(iter(model.inputs(called).values())).shape[0]
    if size % micro:
        raise WrongInput(f"a batch of {size} cannot be taken in micro-batches of {micro}.")
    losses = [
        float(model.call(called, **{n: v[start : start + micro] for n, v in batch.items()})["loss"])
        for start in range(0, size, micro)
    ]
    if in_parts:
        model.call("step")
    return sum(losses) / len(losses)
