"""What is whole in a state folder, found by reading every byte of it and writing none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.aggregator.storage.journal import BEGIN, JournalReader, damaged
from broker.aggregator.storage.store import (
    PREVIOUS,
    SNAPSHOT,
    Snapshot,
    check_generations,
    journals,
    read_snapshot,
)
from broker.durable import is_claimed
from broker.errors import StoreError, WireError
from broker.protocol.messages import Update, from_bytes

LONGEST = 2**32  # bytes of a record


@dataclass(frozen=True)
class JournalFound:
    """A journal, read through; `problem` is empty if everything acknowledged is whole."""

    path: Path
    records: int = 0  # whole ones before the damage
    whole_bytes: int = 0  # of these
    torn_bytes: int = 0  # at the end; nobody was told of them
    lost_bytes: int = 0  # acknowledged ones from the damage on
    lost: tuple[str, ...] = ()  # whose updates the lost bytes hold, as far as it can be read
    problem: str = ""

    def updates(self, generation: int) -> Iterator[bytes]:
        """Yields the whole records before the damage."""
        if self.records:
            with self.path.open("rb") as file:
                yield from JournalReader(file, self.path, generation).records()


@dataclass(frozen=True)
class StateFound:
    """A state folder, read through."""

    folder: Path
    newest: Snapshot | None
    previous: Snapshot | None
    journals: dict[int, JournalFound]
    problems: dict[Path, str] = field(default_factory=dict)  # why a file cannot be used
    missing: str = ""  # says that a journal is there without its snapshot

    @property
    def is_empty(self) -> bool:
        return not (self.newest or self.previous or self.problems or self.missing)

    @property
    def starts(self) -> bool:
        """Whether an aggregator would start with it."""
        if self.newest is None:
            return self.is_empty
        journal = self.journals.get(self.newest.generation)
        return not self.missing and not (journal and journal.problem)

    @property
    def is_whole(self) -> bool:
        return self.starts and not self.problems

    def lines(self) -> Iterator[str]:
        """What a person reads: a line for each file, and a verdict."""
        for path, snapshot in (
            (self.folder / SNAPSHOT, self.newest),
            (self.folder / PREVIOUS, self.previous),
        ):
            if snapshot:
                yield f"{path}: whole; {describe(snapshot)}"
            elif path in self.problems:
                yield self.problems[path]
        for _, journal in sorted(self.journals.items()):
            counted = f"{journal.records} whole updates in {journal.whole_bytes} bytes"
            if journal.problem:
                yield f"{journal.problem} Before that: {counted}."
                yield from (
                    f"acknowledged, and not whole any more: {lost}" for lost in journal.lost
                )
            else:
                torn = f"; {journal.torn_bytes} bytes were never acknowledged"
                yield f"{journal.path}: whole; {counted}{torn if journal.torn_bytes else ''}"
        if self.missing:
            yield self.missing
        if self.is_empty:
            yield f"{self.folder}: empty; a new run would begin here"
        elif self.starts:
            yield f"{self.folder}: an aggregator can start with it"
        else:
            yield f"{self.folder}: no aggregator starts with it; --salvage keeps what is whole"


def describe(snapshot: Snapshot) -> str:
    state = snapshot.state
    return f"run {state.run}, round {state.round}, {len(state.ledger)} devices"


def check_state(folder: Path) -> StateFound:
    """Reads everything; raises `StoreError` if the folder is in use or cannot be listed."""
    try:
        if is_claimed(folder):
            raise StoreError(f"another aggregator is using {folder}.")
        return read_state(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be read ({error.strerror}).") from None


def read_state(folder: Path) -> StateFound:
    problems: dict[Path, str] = {}
    newest = _try_snapshot(folder / SNAPSHOT, problems)
    previous = _try_snapshot(folder / PREVIOUS, problems)
    first = min((s.generation for s in (newest, previous) if s), default=0)
    found = {
        generation: read_journal(path, generation)
        for generation, path in sorted(journals(folder).items())
        if generation >= first  # an older one only waits to be removed
    }
    problems |= {journal.path: journal.problem for journal in found.values() if journal.problem}
    missing = ""
    try:
        check_generations(folder, newest.generation if newest else 0)
    except StoreError as error:
        missing = "" if folder / SNAPSHOT in problems else str(error)
    return StateFound(folder, newest, previous, found, problems, missing)


def _try_snapshot(path: Path, problems: dict[Path, str]) -> Snapshot | None:
    try:
        return read_snapshot(path) if path.exists() else None
    except StoreError as error:
        problems[path] = str(error)
        return None


def read_journal(path: Path, generation: int) -> JournalFound:
    """Reads a journal through, behind a damage too."""
    try:
        with path.open("rb") as file:
            reader = JournalReader(file, path, generation)
            records = sum(1 for _ in reader.records())
            whole = reader.end - BEGIN
            if not reader.is_damaged:
                return JournalFound(path, records, whole, torn_bytes=reader.size - reader.end)
            synced = reader.header.synced
            later = [update for at, update in reader.later_records() if at < synced]
            return JournalFound(
                path,
                records,
                whole,
                lost_bytes=synced - reader.end,
                lost=("what stood in the damaged bytes", *(_described(update) for update in later)),
                problem=str(damaged(path, reader.end)),
            )
    except StoreError as error:
        return JournalFound(path, problem=str(error), lost=("the whole journal",))
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror})."
        return JournalFound(path, problem=problem, lost=("the whole journal",))


def _described(update: bytes) -> str:
    try:
        found = from_bytes(Update, update, limit=LONGEST)
    except WireError:
        return "an update of another version"
    return f"the update of {found.device} that started from round {found.round}"
