"""Which messages a device may act upon, judged by its own history; pure, no I/O.

A signature shows who sent a message. Where a fleet has no key, and against an old message that is
sent again, a device has only what it knows:

rounds   0 ≤ round < 2⁵³, and round ≤ max(state.round, last.round) + 1000. An aggregator publishes
         its state at least every 100 rounds, one of an earlier version says no round: not bounded.
epochs   of one run, no state with a lower epoch than the newest one, which the aggregator publishes
         every 30 s. After 90 s without it, it is forgotten: it was forged, or its folder is lost.
states   mode and exchange of a run do not change.
θ_shared for each tensor t of N_t numbers, with θ the one adopted last and found good, θ⁰ the one
         that the device started with (of its bundle, or of a checkpoint), rms the root mean square,
         and J_t the largest of the last 16 jumps

             ‖θ'_t - θ_t‖ ≤ 2^w · n · max( ¼ · max(‖θ_t‖, √N_t · rms(θ⁰)),  4 · J_t )

         where a jump is ‖θ'_t - θ_t‖ / n. With fewer than 3 jumps there is no history yet:

             ‖θ'_t - θ_t‖ ≤ 2^w · 8 · √N_t · max( rms(θ⁰_t), rms(θ⁰), 0.1 )

         and the same for ‖θ'_t‖ while nothing was adopted. n counts the rounds between θ and θ',
         those that the aggregator's state confirms in full, the k beyond it as log₁₀(1 + 9k): a
         claimed round number is no licence for a large jump.

What breaks a rule is ignored and waited out. If it was honest after all, the aggregator's state
shows that there is a θ_shared which this device has not adopted; with every time that it has asked
for it in vain w grows by one. So a fleet may make any jump, at the cost of some seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from broker.protocol.messages import AggregatorState, Shared
from broker.protocol.slice import Tensors
from broker.protocol.wire import Array
from firmware_sim.errors import Implausible
from firmware_sim.training.checkpoint import Trusted

MOST_ROUNDS = 2**53
ROUNDS_AHEAD = 1000
MOST_EPOCHS = 2**40  # as the aggregator counts them
START, FLOOR, FACTOR, LEAST_RMS = 8.0, 0.25, 4.0, 0.1  # of the equations above
JUMPS = 16  # kept of each tensor
LEAST_JUMPS = 3  # with fewer there is no history
_STATUSES, _MODES = ("online", "offline", "finished"), ("", "sync", "async")
_EXCHANGES = ("", "delta", "gradient")


@dataclass(frozen=True)
class Scale:
    """How large the bundle's initial tensors are."""

    sizes: Mapping[str, int]
    rms: Mapping[str, float]
    overall: float  # root mean square of all of them

    @classmethod
    def of(cls, initial: Tensors) -> Scale:
        sizes = {name: max(1, tensor.size) for name, tensor in initial.items()}
        squares = {name: norm(tensor) ** 2 for name, tensor in initial.items()}
        rms = {name: math.sqrt(squares[name] / size) for name, size in sizes.items()}
        total = sum(sizes.values())
        return cls(sizes, rms, math.sqrt(sum(squares.values()) / total) if total else 0.0)

    def start(self, name: str) -> float:
        """The largest norm or jump of a tensor before there is a history."""
        least = max(self.rms[name], self.overall, LEAST_RMS)
        return START * math.sqrt(self.sizes[name]) * least

    def usual(self, name: str) -> float:
        """The norm of this tensor if its numbers were as large as all initial ones are."""
        return math.sqrt(self.sizes[name]) * self.overall


class Plausibility:
    """Judges θ_shared by the history in `trusted`, which `adopted` continues."""

    def __init__(self, scale: Scale, trusted: Trusted) -> None:
        self._scale = scale
        self._trusted = trusted
        self._refused = False  # something, since the last one was adopted
        self._doublings = 0  # w

    def check(self, shared: Shared, tensors: Tensors, state: AggregatorState) -> None:
        """Raises `Implausible` if the device should not adopt these tensors of `shared`."""
        try:
            self._check_round(shared, state)
            self._check_jump(shared, tensors, state)
        except Implausible:
            self._refused = True
            raise

    def adopted(
        self,
        shared: Shared,
        tensors: Tensors,
        state: AggregatorState,
        quality: float | None = None,
    ) -> None:
        """Continues the history with a θ_shared that was adopted and found good."""
        trusted = self._trusted
        if trusted.run == shared.run and trusted.tensors:
            n = rounds_between(trusted.round, shared.round, state.round)
            for name, tensor in tensors.items():
                jumps = trusted.jumps.setdefault(name, [])
                jumps.append(norm(tensor, trusted.tensors[name]) / n)
                del jumps[:-JUMPS]
        else:
            trusted.jumps = {}
        trusted.run, trusted.round, trusted.tensors = shared.run, shared.round, tensors
        if quality is not None:
            trusted.quality = quality
        self._refused, self._doublings = False, 0

    def asked(self) -> None:
        """The device has asked for what it lacks; widens the bound if a θ_shared was ignored."""
        self._doublings += self._refused

    def _check_round(self, shared: Shared, state: AggregatorState) -> None:
        if not 0 <= shared.round < MOST_ROUNDS:
            raise Implausible(f"round {shared.round} is out of bounds.")
        last = self._trusted.round if self._trusted.run == shared.run else 0
        if state.instance and shared.round > max(state.round, last) + ROUNDS_AHEAD:
            raise Implausible(f"the fleet cannot be in round {shared.round} yet.")

    def _check_jump(self, shared: Shared, tensors: Tensors, state: AggregatorState) -> None:
        trusted = self._trusted if self._trusted.run == shared.run else Trusted()
        n = rounds_between(trusted.round, shared.round, state.round)
        for name in self._scale.sizes:
            before = trusted.tensors.get(name)
            jumps = trusted.jumps.get(name, ())
            most = self._scale.start(name)
            if before is not None and len(jumps) >= LEAST_JUMPS:
                floor = FLOOR * max(norm(before), self._scale.usual(name))
                most = n * max(floor, FACTOR * max(jumps))
            jump = norm(tensors[name], before)
            if not jump <= most * 2.0 ** min(self._doublings, 500):
                what = "is" if before is None else "moved by"
                raise Implausible(
                    f"tensor {name!r} of θ_shared {what} {jump:.3g}, and {most:.3g} is plausible."
                )


def rounds_between(last: int, round: int, confirmed: int) -> float:
    """Returns n: the rounds up to the aggregator's `confirmed` one, and few of those beyond it."""
    beyond = max(0, round - max(confirmed, last))
    inside = max(0, min(round, confirmed) - last)
    return max(1.0, inside + math.log10(1 + 9 * beyond))


def check_state(seen: AggregatorState, known: AggregatorState | None) -> None:
    """Raises `Implausible` for a state that no aggregator publishes, or not after `known`."""
    if (
        seen.status not in _STATUSES
        or seen.mode not in _MODES
        or seen.exchange not in _EXCHANGES
        or not 0 <= seen.round < MOST_ROUNDS
        or not 0 <= seen.epoch <= MOST_EPOCHS
    ):
        raise Implausible("the aggregator's state says what no aggregator does.")
    if known is None or known.run != seen.run:
        return
    if (seen.mode, seen.exchange) != (known.mode, known.exchange):
        raise Implausible("the aggregator's state changes the mode or the exchange of its run.")


def norm(tensor: Array, before: Array | None = None) -> float:
    """Returns ‖tensor‖, or ‖tensor - before‖; infinite if it is too large for float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = tensor if before is None else tensor - before
        found = float(np.linalg.norm(moved.ravel()))
    return found if math.isfinite(found) else math.inf
