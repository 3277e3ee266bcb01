"""What the aggregator keeps on disk: a snapshot, and a journal of the updates accepted since.

    STATE/snapshot.safetensors   θ_shared, optimiser slots, round, ledger; replaced atomically
    STATE/journal-<generation>   accepted updates in order, as they came over the wire
    STATE/lock                   held by the one aggregator that may write here

An update is acknowledged only after `commit`, so it survives SIGKILL and a power cut. Because
coordinators are deterministic, snapshot + journal give the state back bit for bit; a record that
was cut off was never acknowledged and is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from broker.coordinator import Entry, State
from broker.durable import sync_folder, write_file
from broker.wire import Array, WireError, below, decode, encode

FORMAT = 1
SNAPSHOT = "snapshot.safetensors"
_RECORD = struct.Struct("<II")  # length and CRC-32 of the update that follows
_SHARED, _SLOTS, _LEDGER = "shared/", "slots/", "ledger"


class StoreError(Exception):
    """The state folder cannot be used; the text is one sentence."""


@dataclass(frozen=True)
class Identity:
    """What has to be the same for a state to be continued."""

    fleet: str
    fingerprint: str
    mode: str
    exchange: str
    optimizer: str


class Store:
    """One aggregator's state folder; everything in it is durable once a method returns."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self._folder = folder
        self._identity = identity
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("wb")
        except OSError as error:
            raise StoreError(f"{folder} cannot be written ({error.strerror}).") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StoreError(f"another aggregator is using {folder}.") from None
        self._generation = 0
        self._journal: BinaryIO | None = None
        self.journal_bytes = 0

    def load(self) -> State | None:
        """The snapshot, or None in a new folder; the journal is to be replayed on it."""
        path = self._folder / SNAPSHOT
        if not path.exists():
            return None
        try:
            envelope = decode(path.read_bytes(), limit=2**40)
            fields = dict(envelope.fields)
            if envelope.kind != "snapshot" or fields["format"] != FORMAT:
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
        except (OSError, WireError, KeyError, ValueError, TypeError) as error:
            raise StoreError(f"{path} cannot be read ({error}).") from None

    def journal(self) -> Iterator[bytes]:
        """The updates accepted since the snapshot; what was cut off is removed."""
        path = self._journal_path()
        if not path.exists():
            return
        good = 0
        with path.open("r+b") as file:
            while (record := _read_record(file)) is not None:
                good = file.tell()
                yield record
            file.truncate(good)
            file.flush()
            os.fsync(file.fileno())
        self.journal_bytes = good

    def append(self, update: bytes) -> None:
        """Writes an accepted update; it is durable after the next `commit`."""
        if self._journal is None:
            self._journal = self._journal_path().open("ab")
            sync_folder(self._folder)
        self._journal.write(_RECORD.pack(len(update), zlib.crc32(update)))
        self._journal.write(update)
        self.journal_bytes += _RECORD.size + len(update)

    def commit(self) -> None:
        if self._journal is not None:
            self._journal.flush()
            os.fsync(self._journal.fileno())

    def snapshot(self, state: State) -> None:
        """Replaces the snapshot by `state`, which the journal so far has led to."""
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
        write_file(self._folder / SNAPSHOT, encode("snapshot", fields, tensors))
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._generation, self.journal_bytes = generation, 0
        for old in self._folder.glob("journal-*"):
            old.unlink()

    def close(self) -> None:
        if self._journal is not None:
            self.commit()
            self._journal.close()
            self._journal = None
        self._lock.close()

    def _journal_path(self) -> Path:
        return self._folder / f"journal-{self._generation}"

    def _check_identity(self, found: dict[str, Any]) -> None:
        for name, mine in asdict(self._identity).items():
            if found[name] != mine:
                raise StoreError(
                    f"{self._folder} belongs to a fleet whose {name} is {found[name]!r}, "
                    f"not {mine!r}; give another --state."
                )


def _read_record(file: BinaryIO) -> bytes | None:
    head = file.read(_RECORD.size)
    if len(head) < _RECORD.size:
        return None
    length, checksum = _RECORD.unpack(head)
    update = file.read(length)
    if len(update) < length or zlib.crc32(update) != checksum or not length:
        return None
    return update
