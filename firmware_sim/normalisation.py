"""Mean and deviation of each channel, which is the last axis of an input.

    apply(x) = (x − mean) / deviation

They are part of a bundle, or a device learns them from what it sees. Examples are stored as they
came, and normalised when they are used: to train, to test and to predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from firmware_sim.errors import SourceError, TaskError
from firmware_sim.tensor_spec import Array, TensorSpec

LEARNT = ("observed", "mean", "squares")  # names in a checkpoint
How = Literal["bundle", "learn", "none"]


@dataclass(frozen=True)
class Normalisation:
    """Numbers that do not change; one of each for every channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]  # of a channel that never changes: 1

    @classmethod
    def of(cls, x: Array) -> Normalisation:
        """Returns the normalisation that examples have, all of them together."""
        return Moments().with_more(x).normalisation

    def apply(self, x: Array) -> Array:
        """Returns one example or many, normalised."""
        mean, deviation = self._arrays
        normalised: Array = (x - mean) / deviation
        return normalised

    def __str__(self) -> str:
        mean, deviation = (
            ", ".join(f"{value:.6g}" for value in values) for values in (self.mean, self.deviation)
        )
        return f"(x - mean) / deviation, with mean {mean} and deviation {deviation}"

    @cached_property
    def _arrays(self) -> tuple[Array, Array]:
        return np.array(self.mean, np.float32), np.array(self.deviation, np.float32)


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared differences from the mean, of the values of each channel.

    With more values b (Welford, for many at once: Chan, Golub and LeVeque 1979):

        n  = n_a + n_b,   δ = mean_b − mean_a
        mean = mean_a + δ · n_b / n
        M    = M_a + M_b + δ² · n_a · n_b / n,   deviation = √(M / n)
    """

    count: int = 0
    mean: Array | float = 0.0
    squares: Array | float = 0.0  # M

    def with_more(self, x: Array) -> Moments:
        rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
        count = self.count + len(rows)
        mean = rows.mean(axis=0)
        squares = np.square(rows - mean).sum(axis=0)
        apart = mean - self.mean
        return Moments(
            count,
            self.mean + apart * (len(rows) / count),
            self.squares + squares + np.square(apart) * (self.count * len(rows) / count),
        )

    def pack(self) -> bytes:
        """Returns them as a store keeps them, once there are any."""
        count, numbers = np.array(self.count, np.int64), np.array([self.mean, self.squares])
        return bytes(count.tobytes() + numbers.astype(np.float64).tobytes())

    @property
    def normalisation(self) -> Normalisation:
        deviation = np.sqrt(np.asarray(self.squares) / max(1, self.count))
        # What rounding leaves of a constant is no deviation.
        constant = deviation <= 1e-9 * np.abs(self.mean)
        usable = np.where(constant | (deviation == 0), 1.0, deviation)
        return Normalisation(tuple(np.asarray(self.mean).tolist()), tuple(usable.tolist()))


class Normaliser(Protocol):
    """What a device does to an example before its branch sees it."""

    def apply(self, x: Array) -> Array:
        """Returns one example or many, as the branch sees them; may be called from any thread."""

    def state(self) -> dict[str, Array]:
        """Returns what a checkpoint keeps."""

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continues from `state`."""


class Unlearnt:
    """A fixed normalisation, or none."""

    def __init__(self, fixed: Normalisation | None = None) -> None:
        self._fixed = fixed

    def apply(self, x: Array) -> Array:
        return x if self._fixed is None else self._fixed.apply(x)

    def state(self) -> dict[str, Array]:
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        if state:
            raise TaskError(
                "the state was trained with a normalisation that the device had learnt; "
                "say --normalise learn, or use another --state."
            )


class Learnt:
    """The normalisation of all that was observed so far; the store keeps it with the examples."""

    def __init__(self, channels: int) -> None:
        self._channels = channels
        # Replaced as a whole, so that every thread sees numbers that belong together.
        self._moments = Moments()
        self._now = Normalisation((0.0,) * channels, (1.0,) * channels)

    @property
    def normalisation(self) -> Normalisation:
        return self._now

    def after(self, x: Array) -> Moments:
        """Returns the moments with one more example, for `take` once it is stored."""
        return self._moments.with_more(x)

    def take(self, moments: Moments) -> None:
        self._moments = moments
        self._now = moments.normalisation

    def unpack(self, data: bytes) -> Moments:
        """Returns the moments of `Moments.pack`; raises a TaskError if others were packed."""
        if len(data) != 8 * (1 + 2 * self._channels):
            raise TaskError("the normalisation in the store is of other examples.")
        mean, squares = np.frombuffer(data[8:], np.float64).reshape(2, self._channels)
        return Moments(int(np.frombuffer(data[:8], np.int64)[0]), mean, squares)

    def apply(self, x: Array) -> Array:
        return self._now.apply(x)

    def state(self) -> dict[str, Array]:
        moments = self._moments
        shape = (self._channels,)
        return {
            "observed": np.array(moments.count, np.int64),
            "mean": np.broadcast_to(np.asarray(moments.mean, np.float64), shape).copy(),
            "squares": np.broadcast_to(np.asarray(moments.squares, np.float64), shape).copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        if not state:
            raise TaskError(
                "the state was trained without a learnt normalisation; "
                "do not say --normalise learn, or use another --state."
            )
        wanted = {name: (part.shape, part.dtype) for name, part in self.state().items()}
        found = {name: (part.shape, part.dtype) for name, part in state.items()}
        whole = found == wanted and all(np.isfinite(part).all() for part in state.values())
        if not whole or state["observed"] < 0 or (state["squares"] < 0).any():
            raise TaskError("the normalisation in the state of a task is damaged.")
        count, mean, squares = (state[name] for name in LEARNT)
        if count > self._moments.count:  # the store, which is newer, has lost its examples
            self.take(Moments(int(count), mean, squares))


def learnt_in(state: Mapping[str, Array]) -> Normalisation | None:
    """Returns the normalisation that a task's state has learnt, if any."""
    if not all(name in state for name in LEARNT) or not state["observed"]:
        return None
    learnt = Learnt(len(state["mean"]))
    learnt.restore({name: state[name] for name in LEARNT})
    return learnt.normalisation


def normaliser(how: How, x: TensorSpec, bundle: Normalisation | None) -> Normaliser:
    """Returns what normalises examples `x`; `bundle` is what the bundle brings."""
    if how == "learn":
        if x.dtype.kind != "f":
            raise SourceError(f"the bundle takes {x}: only numbers with fractions are normalised.")
        return Learnt(x.shape[-1] if x.shape else 1)
    return Unlearnt(bundle if how == "bundle" else None)
