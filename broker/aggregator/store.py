"""The aggregator's state on disk: a snapshot, and a journal of the updates accepted since.

    STATE/snapshot.safetensors   θ_shared, optimiser slots, round, ledger; replaced atomically
    STATE/journal-<generation>   accepted updates in order, as they came over the wire
    STATE/lock                   held by the one aggregator that may write here

An update is acknowledged only after `commit`, so it survives SIGKILL and a power cut. Because
coordinators are deterministic, snapshot and journal together restore the state bit for bit; an
incomplete record was never acknowledged and is dropped.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from broker.durable import claim, read_sealed, sync_file, sync_path, write_sealed
from broker.errors import StoreError, WireError
from broker.merging.coordinator import Entry, State
from broker.protocol.wire import Array, below

FORMAT = 1
SNAPSHOT = "snapshot.safetensors"
_RECORD = struct.Struct("<II")  # length and CRC-32 of the update that follows
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


class Store:
    """One aggregator's state folder; everything in it is durable once a method returns."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self._folder = folder
        self._identity = identity
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            lock = claim(folder)
        if lock is None:
            raise StoreError(f"another aggregator is using {folder}.")
        self._lock = lock
        self._generation = 0
        self._journal: BinaryIO | None = None
        self._uncommitted = False
        self.journal_bytes = 0
        self.cut_bytes = 0  # of an incomplete record at the end of the journal, after a kill

    def load(self) -> State | None:
        """Returns the snapshot, or None in a new folder; replay the journal on it."""
        path = self._folder / SNAPSHOT
        if not path.exists():
            return None
        try:
            envelope = read_sealed(path, "snapshot")
            fields = envelope.fields
            if fields["format"] != FORMAT:
                raise StoreError(f"{path} was written by another version.")
            self._check_identity(fields["identity"])
            self._generation = int(fields["generation"])
            ledger = json.loads(envelope.tensors[_LEDGER].tobytes())
            return State(
                run=fields["run"],
                round=fields["round"],
                shared=below(_SHARED, envelope.tensors),
                slots=below(_SLOTS, envelope.tensors),
                ledger={
                    device: Entry(**{**entry, "tensors": tuple(entry["tensors"])})
                    for device, entry in ledger.items()
                },
            )
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}).") from None
        except WireError as error:
            raise StoreError(f"{path} cannot be read: {error}") from None
        except (KeyError, ValueError, TypeError):  # undamaged, but not in this format
            raise StoreError(f"{path} was written by another version.") from None

    def journal(self) -> Iterator[bytes]:
        """Yields the updates accepted since the snapshot; removes an incomplete last record."""
        path = self._journal_path()
        if not path.exists():
            return
        good = 0
        with self._writing(), path.open("r+b") as file:
            size = path.stat().st_size
            while (record := _read_record(file, size - good)) is not None:
                good += _RECORD.size + len(record)
                yield record
            file.truncate(good)
            sync_file(file)
        self.journal_bytes, self.cut_bytes = good, size - good

    def append(self, update: bytes) -> None:
        """Writes an accepted update; it is durable after the next `commit`."""
        with self._writing():
            if self._journal is None:
                self._journal = self._journal_path().open("ab")
                sync_path(self._folder)
            self._journal.write(_RECORD.pack(len(update), zlib.crc32(update)))
            self._journal.write(update)
        self._uncommitted = True
        self.journal_bytes += _RECORD.size + len(update)

    def commit(self) -> None:
        """Makes all appended updates durable."""
        if self._journal is not None and self._uncommitted:
            with self._writing():
                sync_file(self._journal)
            self._uncommitted = False

    def snapshot(self, state: State) -> None:
        """Replaces the snapshot by `state`, and removes the journal that led to it."""
        generation = self._generation + 1
        ledger = {device: asdict(entry) for device, entry in state.ledger.items()}
        tensors: dict[str, Array] = {
            **{_SHARED + name: array for name, array in state.shared.items()},
            **{_SLOTS + name: array for name, array in state.slots.items()},
            _LEDGER: np.frombuffer(json.dumps(ledger).encode(), np.uint8),
        }
        fields = {
            "format": FORMAT,
            "identity": asdict(self._identity),
            "generation": generation,
            "run": state.run,
            "round": state.round,
        }
        with self._writing():
            write_sealed(self._folder / SNAPSHOT, "snapshot", fields, tensors)
            self._generation, self.journal_bytes = generation, 0
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            for old in self._folder.glob("journal-*"):
                old.unlink()

    def close(self) -> None:
        journal, self._journal = self._journal, None
        try:
            if journal is not None:
                with self._writing(), journal:  # closes it also if the disk is full
                    sync_file(journal)
        finally:
            self._lock.close()

    def _journal_path(self) -> Path:
        return self._folder / f"journal-{self._generation}"

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


def _read_record(file: BinaryIO, left: int) -> bytes | None:
    """Returns the next update, or None if the rest of the file has no complete one."""
    if left < _RECORD.size:
        return None
    length, checksum = _RECORD.unpack(file.read(_RECORD.size))
    if not 0 < length <= left - _RECORD.size:  # a damaged length could ask for 4 GiB of memory
        return None
    update = file.read(length)
    return update if zlib.crc32(update) == checksum else None
