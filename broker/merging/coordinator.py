"""What both coordinators have in common: their settings, their state, and who has sent what.

A coordinator is a pure state machine: updates and times go in, verdicts and θ_shared come out.
It does no I/O, reads no clock and draws no random numbers, so replaying the same updates in the
same order gives the same θ, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from broker.errors import MergeRefused, SettingsRefused
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Optimizer, Slots
from broker.merging.staleness import STALENESS
from broker.protocol.messages import Reason, Refused, Update
from broker.protocol.slice import Tensors

MODES = ("sync", "async")
MAX_DEVICES = 10_000


class Outcome(Enum):
    """What became of an update that was not refused."""

    ACCEPTED = auto()
    DUPLICATE = auto()  # it was accepted before; the device has missed the verdict


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a fleet merges."""

    mode: str
    merge: MergeRule
    optimizer: Optimizer
    quorum: int = 1  # devices; fewer do not close a round
    deadline_seconds: float = 60.0  # after which a round closes with whoever has sent
    rounds: int | None = None  # merges after which the fleet is finished
    staleness: str = "polynomial"

    def __post_init__(self) -> None:
        for what, chosen, known in (
            ("mode", self.mode, MODES),
            ("staleness", self.staleness, STALENESS),
        ):
            if chosen not in known:
                raise SettingsRefused(f"{what} {chosen!r} is none of {', '.join(known)}.")
        if self.mode == "async" and self.merge.is_robust:
            raise SettingsRefused(
                f"merge {self.merge.name!r} compares devices, and the asynchronous coordinator "
                "sees one at a time; use sync, or clip the norm."
            )
        if self.quorum < 1:
            raise SettingsRefused(f"a quorum of {self.quorum} is no quorum: take 1 or more.")
        if not self.deadline_seconds > 0:  # nor is NaN
            raise SettingsRefused(
                f"a deadline of {self.deadline_seconds} seconds is none: take more than 0."
            )
        if self.rounds is not None and self.rounds < 1:
            raise SettingsRefused(f"{self.rounds} rounds are no training: take 1 or more.")
        if self.mode == "sync":
            try:
                self.merge.check(self.quorum)
            except MergeRefused as error:
                raise SettingsRefused(f"the quorum of {self.quorum} is too low: {error}") from None


@dataclass(frozen=True)
class Entry:
    """The last accepted update of one device."""

    round: int
    nonce: str
    samples: int
    tensors: tuple[str, ...]


@dataclass
class State:
    """All that a coordinator has to remember beyond the open round."""

    run: str
    round: int
    shared: Tensors
    slots: Slots
    ledger: dict[str, Entry] = field(default_factory=dict)


class Coordinator(Protocol):
    """Algorithm 2 or 3 of the paper."""

    settings: Settings

    @property
    def state(self) -> State: ...

    @property
    def finished(self) -> bool: ...

    def join(self, device: str) -> None: ...

    def leave(self, device: str) -> None: ...

    def offer(self, update: Update) -> Outcome:
        """Takes a checked update, or raises `Refused`; nothing changes then."""
        ...

    def closes_at(self, now: float) -> float:
        """When the open round closes if no other update comes; infinity if it never does."""
        ...

    def close(self, now: float) -> Closed:
        """Ends the open round, which is due."""
        ...


@dataclass(frozen=True)
class Closed:
    """How a round ended: merged, or (below quorum) extended without any change."""

    merged: bool
    devices: int
    held_back: tuple[str, ...] = ()  # tensors that too few devices held for the merge rule


def entry_of(update: Update) -> Entry:
    return Entry(update.round, update.nonce, update.samples, tuple(sorted(update.tensors)))


def check_newcomer(device: str, ledger: Mapping[str, Entry]) -> None:
    if device not in ledger and len(ledger) >= MAX_DEVICES:
        raise Refused(Reason.FULL, f"the fleet has its {MAX_DEVICES} devices.")


def is_finished(settings: Settings, state: State) -> bool:
    return settings.rounds is not None and state.round >= settings.rounds
