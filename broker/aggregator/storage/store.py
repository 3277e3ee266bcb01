"""The aggregator's state on disk: a snapshot, and a journal of the updates accepted since.

    STATE/snapshot.safetensors   θ_shared, optimiser slots, round, ledger; replaced atomically
    STATE/journal-<generation>   accepted updates in order, as they came over the wire
    STATE/previous.safetensors   the snapshot before: with its journal it leads to the newest one
    STATE/lock                   held by the one aggregator that may write here

An update is acknowledged only after `commit`, so it survives SIGKILL and a power cut. Because
coordinators are deterministic, snapshot and journal together restore the state bit for bit. Only
what was never acknowledged is dropped; any other damage is an error, and nothing is touched: see
`journal.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from broker.aggregator.storage.journal import BEGIN, Journal, JournalReader, create_journal
from broker.durable import claim, make_folder, read_sealed, sync_path, write_sealed
from broker.errors import StoreError, WireError
from broker.merging.coordinator import Entry, State
from broker.protocol.wire import Array, below

FORMAT = 1
SNAPSHOT = "snapshot.safetensors"
PREVIOUS = "previous.safetensors"
_SHARED, _SLOTS, _LEDGER = "shared/", "slots/", "ledger"


@dataclass(frozen=True)
class Identity:
    """What has to be the same for a state to be continued."""

    fleet: str
    fingerprint: str
    mode: str
    exchange: str
    optimizer: str
    merging: str = ""  # see Coordinator.replay_identity


_IDENTITY = {key.name for key in fields(Identity)}


@dataclass(frozen=True)
class Snapshot:
    """A state, whose it is, and the number of the journal that continues it."""

    identity: dict[str, Any]
    generation: int
    state: State


def read_snapshot(path: Path) -> Snapshot:
    """Returns what `write_snapshot` wrote, or raises `StoreError`."""
    try:
        envelope = read_sealed(path, "snapshot")
        stored = envelope.fields
        if stored["format"] != FORMAT:
            raise StoreError(f"{path} was written by another version.")
        if stored["identity"].keys() != _IDENTITY:
            raise StoreError(f"{path} was written by another version.")
        ledger = json.loads(envelope.tensors[_LEDGER].tobytes())
        state = State(
            run=stored["run"],
            round=stored["round"],
            shared=below(_SHARED, envelope.tensors),
            slots=below(_SLOTS, envelope.tensors),
            ledger={device: _entry(entry) for device, entry in ledger.items()},
        )
        return Snapshot(dict(stored["identity"]), int(stored["generation"]), state)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}).") from None
    except WireError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    except (KeyError, ValueError, TypeError):  # undamaged, but not in this format
        raise StoreError(f"{path} was written by another version.") from None


def _entry(stored: dict[str, Any]) -> Entry:
    """An entry of the ledger; those of versions before bounds have no norms."""
    tensors, squares = tuple(stored["tensors"]), tuple(stored.get("squares", ()))
    return Entry(**stored | {"tensors": tensors, "squares": squares})


def load_snapshot(folder: Path) -> Snapshot | None:
    """The newest snapshot of a state folder, or None where nothing was ever merged."""
    path = folder / SNAPSHOT
    return read_snapshot(path) if path.exists() else None


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Replaces `path`; when this returns, the snapshot survives a power cut."""
    state = snapshot.state
    ledger = {device: asdict(entry) for device, entry in state.ledger.items()}
    tensors: dict[str, Array] = {
        **{_SHARED + name: array for name, array in state.shared.items()},
        **{_SLOTS + name: array for name, array in state.slots.items()},
        _LEDGER: np.frombuffer(json.dumps(ledger).encode(), np.uint8),
    }
    fields = {
        "format": FORMAT,
        "identity": snapshot.identity,
        "generation": snapshot.generation,
        "run": state.run,
        "round": state.round,
    }
    write_sealed(path, "snapshot", fields, tensors)


def journals(folder: Path) -> dict[int, Path]:
    """The journals of a state folder by their generation."""
    found = ((re.fullmatch(r"journal-(\d+)", path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in found if match}


def check_generations(folder: Path, newest: int) -> None:
    """Refuses a folder with updates of a state that came after its snapshot.

    A journal gets its name before its snapshot does, and its first record after.
    """
    for generation, path in sorted(journals(folder).items(), reverse=True):
        if generation > newest and path.stat().st_size > BEGIN:
            raise StoreError(
                f"{path} holds updates that came after {folder / SNAPSHOT}: a newer snapshot is "
                f"missing; `python -m broker.aggregator --check --state {folder}` says what is "
                "whole."
            )


class Store:
    """One aggregator's state folder; everything in it is durable once a method returns."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self._folder = folder
        self._identity = identity
        with self._writing():
            make_folder(folder)
            lock = claim(folder)
        if lock is None:
            raise StoreError(f"another aggregator is using {folder}.")
        self._lock = lock
        self._generation = 0
        self._journal: Journal | None = None
        self.journal_bytes = 0
        self.cut_bytes = 0  # of incomplete records at the end of the journal, after a kill

    def load(self) -> State | None:
        """Returns the snapshot, or None in a new folder; replay the journal on it."""
        with self._reading():
            snapshot = load_snapshot(self._folder)
            self._generation = snapshot.generation if snapshot else 0
            check_generations(self._folder, self._generation)
        if snapshot is None:
            return None
        self._check_identity(snapshot.identity)
        return snapshot.state

    def journal(self) -> Iterator[bytes]:
        """Yields the updates accepted since the snapshot; raises `StoreError` if one is damaged.

        After the last one, incomplete records that were never acknowledged are removed.
        """
        if self._journal is not None:  # begun by this process: nothing in it is to be replayed
            return
        path = self._journal_path(self._generation)
        with self._reading():
            if not path.exists():  # as in a folder that was restored from a snapshot alone
                return
            with path.open("rb") as file:
                reader = JournalReader(file, path, self._generation)
                yield from reader.records()
                reader.check()
        self.journal_bytes, self.cut_bytes = reader.end - BEGIN, reader.size - reader.end
        with self._writing():
            self._journal = Journal(path, reader.header, reader.end)

    def append(self, update: bytes) -> None:
        """Writes an accepted update; it is durable after the next `commit`."""
        with self._writing():
            if self._journal is None:  # of a folder that was restored from a snapshot alone
                path = self._journal_path(self._generation)
                assert not path.exists(), "a journal is read before anything is added to it"
                self._journal = Journal(path, create_journal(path, self._generation), BEGIN)
                sync_path(self._folder)
            self.journal_bytes += self._journal.append(update)

    def commit(self) -> None:
        """Makes all appended updates durable."""
        if self._journal is not None:
            with self._writing():
                self._journal.commit()

    def snapshot(self, state: State) -> None:
        """Replaces the snapshot by `state`; the old one and the journal that led to it are kept."""
        newest, previous = self._folder / SNAPSHOT, self._folder / PREVIOUS
        generation = self._generation + 1
        path = self._journal_path(generation)
        with self._writing():
            self._end_journal()
            header = create_journal(path, generation)
            previous.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # none yet, or a file system without hard links
                previous.hardlink_to(newest)
            write_snapshot(newest, Snapshot(asdict(self._identity), generation, state))
            # Both names are durable now, and so are those that are gone.
            self._journal, self.journal_bytes = Journal(path, header, BEGIN), 0
            for old, file in journals(self._folder).items():
                if old < self._generation:  # the previous snapshot keeps its journal
                    file.unlink()
            self._generation = generation

    def close(self) -> None:
        try:
            with self._writing():
                self._end_journal()
        finally:
            self._lock.close()

    def _end_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def _journal_path(self, generation: int) -> Path:
        return self._folder / f"journal-{generation}"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self._folder
            raise StoreError(f"{where} cannot be read ({error.strerror}).") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self._folder} cannot be written ({error.strerror}).") from None

    def _check_identity(self, found: dict[str, Any]) -> None:
        for name, mine in asdict(self._identity).items():
            if found[name] != mine:
                other = repr(found[name])[:100]
                raise StoreError(
                    f"{self._folder} belongs to something else: its {name} is {other}, "
                    f"not {mine!r}; give another --state."
                )
