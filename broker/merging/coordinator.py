"""What both coordinators have in common: their settings, their state, and the last updates.

A coordinator is a pure state machine: updates and times go in, outcomes and θ_shared come out. It
does no I/O, reads no clock and draws no random numbers, so replaying the same updates in the same
order gives the same θ, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

from broker.errors import MergeRefused, SettingsRefused
from broker.merging.merge import MergeRule
from broker.merging.optimizers import Optimizer, Slots
from broker.merging.presence import MAX_DEVICES, Presence
from broker.merging.staleness import STALENESS
from broker.protocol.messages import Reason, Refused, Update
from broker.protocol.slice import Tensors

MODES = ("sync", "async")


class Outcome(Enum):
    """The outcome of an update that was not refused."""

    ACCEPTED = auto()
    DUPLICATE = auto()  # it was accepted before; the device did not receive the verdict


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a fleet merges."""

    mode: str
    merge: MergeRule
    optimizer: Optimizer
    quorum: int = 1  # devices; fewer do not close a round
    deadline_seconds: float = 60.0  # after which a round closes with the updates it has
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
        if not self.deadline_seconds > 0:  # true for NaN as well
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
    squares: tuple[float, ...] = ()  # ‖Δ‖² of each tensor, where updates are compared by it


@dataclass
class State:
    """All that a coordinator has to keep beside the open round."""

    run: str
    round: int
    shared: Tensors
    slots: Slots
    ledger: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Closed:
    """How a round ended: merged, or (below quorum) extended without any change."""

    merged: bool
    devices: int
    held_back: tuple[str, ...] = ()  # tensors that too few devices held for the merge rule
    silent: tuple[str, ...] = ()  # devices that were waited for in vain


@dataclass(frozen=True)
class Limited:
    """Devices whose updates were scaled down, and whose weights were; one entry per update."""

    clipped: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()


class Coordinator(ABC):
    """Algorithm 2 or 3 of the paper: what both share, and what each answers in its own way."""

    replies_individually: ClassVar[bool]  # each accepted device gets θ_shared on its own topic

    def __init__(self, settings: Settings, state: State, now: float) -> None:
        self.settings = settings
        self.state = state
        self.present = Presence()
        self._limited = Limited()

    @classmethod
    @abstractmethod
    def replay_identity(cls, settings: Settings) -> str:
        """Returns the settings that must be the same when a journal is replayed, as text."""

    @property
    def finished(self) -> bool:
        """Whether the last round is merged."""
        return self.settings.rounds is not None and self.state.round >= self.settings.rounds

    @property
    @abstractmethod
    def state_is_complete(self) -> bool:
        """Whether `state` holds all accepted updates: a snapshot may then replace the journal."""

    def join(self, device: str, *, receives: bool = False, waiting: bool = False) -> bool:
        """Notes that a device is there; returns whether that is news. Raises `Refused` if full.

        One that only receives θ_shared, or waits with its training, is not waited for.
        """
        if waiting:
            return self.present.wait(device)
        return self.present.join(device, self.state.ledger, receives=receives)

    def leave(self, device: str) -> bool:
        """Notes that a device is gone; returns whether it was present."""
        return self.present.leave(device)

    def offer(self, update: Update) -> Outcome:
        """Takes a checked update, or raises `Refused`; nothing changes then."""
        last = self.state.ledger.get(update.device)
        if last is not None and (last.round, last.nonce) == (update.round, update.nonce):
            return Outcome.DUPLICATE
        if self.finished:
            raise Refused(
                Reason.FINISHED, f"the fleet has finished after round {self.state.round}."
            )
        self.accept(update)
        return Outcome.ACCEPTED

    @abstractmethod
    def accept(self, update: Update) -> None:
        """Takes an update that is new, or raises `Refused`; nothing changes then.

        Also for updates of the journal: they were accepted before, and count even if the fleet
        was started again with fewer rounds.
        """

    @abstractmethod
    def closes_at(self, now: float) -> float:
        """Returns when the open round closes if no other update comes; infinity for never."""

    @abstractmethod
    def close(self, now: float) -> Closed:
        """Ends the open round, which is due."""

    def limited(self) -> Limited:
        """Returns whose updates were limited since the last call."""
        found, self._limited = self._limited, Limited()
        return found

    def _note_limited(self, clipped: Iterable[str], bounded: Iterable[str]) -> None:
        before = self._limited
        self._limited = Limited((*before.clipped, *clipped), (*before.bounded, *bounded))

    def _check_newcomer(self, device: str) -> None:
        ledger = self.state.ledger
        if device not in ledger and len(ledger) >= MAX_DEVICES:
            raise Refused(Reason.FULL, f"the fleet has its {MAX_DEVICES} devices.")


def entry_of(update: Update) -> Entry:
    """Returns what the ledger keeps of an accepted update."""
    return Entry(update.round, update.nonce, update.samples, tuple(sorted(update.tensors)))
