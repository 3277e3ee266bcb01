"""The journal: the updates accepted since a snapshot, and proof of what was acknowledged.

    0    MAGIC, version, generation, salt, CRC-32     written once, before the file has its name
    32   offset `synced` and its CRC-32               two slots, overwritten in turn
    48   the same
    64   records: MARK, length, CRC-32 of the update, CRC-32 of this header; then the update

After every fsync one slot is overwritten with the offset up to which everything was synced. The
slot is not synced itself: the next fsync takes it along. Where a slot states an offset, everything
before it was on the disk. So the first record that is not whole, at offset p, says what happened:

    p < synced   acknowledged bytes have changed: damage
    p ≥ synced   a power cut or a kill came before the fsync returned: a torn tail that nobody
                 was told of

Between two overwritten slots there is an fsync, so a power cut can tear only one of them, and the
other one is a single commit older. The CRC-32 of a record's header covers the salt and the
record's offset: bytes that the disk held before, or that a device put into an update, are never
taken for a record.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from broker.durable import replace_file, sync_file
from broker.errors import StoreError

MAGIC = b"stemjrnl"
VERSION = 2  # version 1 had no header
_FIXED = struct.Struct("<8sIQQ")  # MAGIC, version, generation, salt
_CRC = struct.Struct("<I")
_SLOT = struct.Struct("<QI4x")
_SLOTS = (32, 48)  # offsets
BEGIN = 64  # offset of the first record
_MARK = b"\xf5upd"  # no UTF-8 text holds it
_RECORD = struct.Struct("<4sIII")
RECORD_BYTES = _RECORD.size  # beside the update itself


@dataclass(frozen=True)
class Header:
    """What a journal states of itself."""

    generation: int
    salt: int
    synced: int  # offset; everything before it was acknowledged, or could have been
    slot: int  # number of the slot that says so

    def record(self, offset: int, length: int, checksum: int) -> bytes:
        """The header of a record at `offset`."""
        sealed = zlib.crc32(struct.pack("<QQII", self.salt, offset, length, checksum))
        return _RECORD.pack(_MARK, length, checksum, sealed)


def create_journal(path: Path, generation: int) -> Header:
    """Writes a journal without records; its name is durable when the folder is synced."""
    salt = secrets.randbits(64)
    fixed = _FIXED.pack(MAGIC, VERSION, generation, salt)
    replace_file(path, fixed, _CRC.pack(zlib.crc32(fixed)), *(_slot(salt, BEGIN) for _ in _SLOTS))
    return Header(generation, salt, BEGIN, slot=1)


@dataclass
class JournalReader:
    """Reads the whole records of a journal from the start; never writes.

    `end` is where the whole records end, as far as they were read.
    """

    file: BinaryIO
    path: Path
    generation: int  # of the snapshot that it continues
    header: Header = field(init=False)
    size: int = field(init=False)
    end: int = field(init=False, default=BEGIN)

    def __post_init__(self) -> None:
        self.size = os.fstat(self.file.fileno()).st_size
        self.header = _read_header(self.file, self.path)
        if self.header.generation != self.generation:  # it was renamed, or copied here
            raise damaged(self.path, 0)

    def records(self) -> Iterator[bytes]:
        """Yields updates up to the first record that is not whole."""
        while (update := self._record_at(self.end)) is not None:
            self.end += RECORD_BYTES + len(update)
            yield update

    @property
    def is_damaged(self) -> bool:
        """After `records`: whether something is not whole that was acknowledged."""
        return self.end < self.header.synced

    def check(self) -> None:
        if self.is_damaged:
            raise damaged(self.path, self.end)

    def later_records(self) -> Iterator[tuple[int, bytes]]:
        """After `records`: yields offset and update of whole records behind the damage."""
        offset = self.end
        while offset < self.size:
            update = self._record_at(offset)
            if update is None:
                offset = self._next_mark(offset + 1)
            else:
                yield offset, update
                offset += RECORD_BYTES + len(update)

    def _record_at(self, offset: int) -> bytes | None:
        """The update at `offset`, or None if there is no whole record."""
        left = self.size - offset - RECORD_BYTES
        if left < 0:
            return None
        self.file.seek(offset)
        found = self.file.read(RECORD_BYTES)
        _, length, checksum, _ = _RECORD.unpack(found)
        # Before the update is read: a damaged length may claim 4 GiB of memory.
        if found != self.header.record(offset, length, checksum) or not 0 < length <= left:
            return None
        update = self.file.read(length)
        return update if zlib.crc32(update) == checksum else None

    def _next_mark(self, offset: int) -> int:
        """Where the next record may begin, or the end of the file."""
        piece, overlap = 2**20, len(_MARK) - 1
        while offset < self.size:
            self.file.seek(offset)
            place = self.file.read(piece + overlap).find(_MARK)
            if place >= 0:
                return offset + place
            offset += piece
        return self.size


class Journal:
    """A journal to append to; its caller has read it and knows where its whole records end."""

    def __init__(self, path: Path, header: Header, end: int) -> None:
        self._file = path.open("r+b")
        self._header = header
        self._end = end
        self._synced = header.synced
        self._slot = header.slot
        try:
            self._file.seek(0, os.SEEK_END)
            if self._file.tell() > end:
                self._file.truncate(end)
                self._file.seek(end)
                self._synced = -1  # the cut must be on the disk before anything follows it
            # What was read may be in memory alone, and a device may soon be told that it is here.
            self.commit()
        except BaseException:
            self._file.close()
            raise

    def append(self, update: bytes) -> int:
        """Writes a record, durable after the next `commit`; returns its number of bytes."""
        self._file.write(self._header.record(self._end, len(update), zlib.crc32(update)))
        self._file.write(update)
        self._end += RECORD_BYTES + len(update)
        return RECORD_BYTES + len(update)

    def commit(self) -> None:
        """Makes everything durable that was appended, then notes that it is."""
        if self._synced == self._end:
            return
        sync_file(self._file)
        self._slot = 1 - self._slot
        os.pwrite(self._file.fileno(), _slot(self._header.salt, self._end), _SLOTS[self._slot])
        self._synced = self._end

    def close(self) -> None:
        with self._file:  # which ends it, also if the disk is full
            self.commit()


def _slot(salt: int, synced: int) -> bytes:
    return _SLOT.pack(synced, zlib.crc32(struct.pack("<QQ", salt, synced)))


def _read_header(file: BinaryIO, path: Path) -> Header:
    data = file.read(BEGIN)
    fixed = data[: _FIXED.size]
    if len(data) < BEGIN or _CRC.unpack_from(data, _FIXED.size) != (zlib.crc32(fixed),):
        raise StoreError(f"{path} is damaged at byte 0, or was written by another version.")
    magic, version, generation, salt = _FIXED.unpack(fixed)
    if (magic, version) != (MAGIC, VERSION):
        raise StoreError(f"{path} was written by another version.")
    stated = []
    for number, place in enumerate(_SLOTS):
        (synced, _) = _SLOT.unpack_from(data, place)
        if data[place : place + _SLOT.size] == _slot(salt, synced):
            stated.append((synced, number))
    if not stated:
        raise damaged(path, _SLOTS[0])
    synced, number = max(stated)
    return Header(generation, salt, synced, number)


def damaged(path: Path, offset: int) -> StoreError:
    return StoreError(
        f"{path} is damaged at byte {offset}; "
        f"`python -m broker.aggregator --check --state {path.parent}` says what is whole."
    )
