"""How many examples fit into the storage and the memory that are left for them; pure.

The file is made of pages of PAGE bytes. A row with its data takes a cell in a leaf page; what is
longer than a cell may be goes into overflow pages (sqlite.org/fileformat2.html, section 1.6). Slots
are reused in place, so that pages stay as full as they were when they were filled the first time.
"""

from __future__ import annotations

from dataclasses import dataclass

from firmware_sim.errors import LimitError
from firmware_sim.training.limits import MIB

PAGE = 4096  # bytes
MOST_SLOTS = 65_536  # what is known of each is in memory: about 2 MiB of arrays
LEAST_SLOTS = 64
_FACTS_BYTES = 160  # of a slot, beside its data: the row with its key and the index, half full
_FIXED_BYTES = 96 * 2**10  # tables of the database itself, and its shared-memory file
_MOST_JOURNAL = 4 * MIB
_JOURNAL_PART = 1 / 8
_CELL_MOST = PAGE - 35  # bytes of a row that stay in its leaf page
_CELL_LEAST = (PAGE - 12) * 32 // 255 - 23
_ROW_BYTES = 16  # header and number of a row, and the pointer to its cell
_INNER = 1.02  # pages above the leaves


@dataclass(frozen=True)
class Size:
    """The most that a store takes."""

    slots: int
    journal_pages: int  # of the write-ahead log, after which it is written into the file
    pages: int  # of the file


def size_for(example_bytes: int, storage_bytes: int) -> Size:
    """Returns the size of a store whose file and journal take `storage_bytes` at most."""
    journal = int(min(_MOST_JOURNAL, _JOURNAL_PART * storage_bytes))
    of_file = storage_bytes - journal - _FIXED_BYTES
    slots = min(MOST_SLOTS, int(of_file / (_bytes_of_row(example_bytes) * _INNER + _FACTS_BYTES)))
    if slots < LEAST_SLOTS:
        raise LimitError(
            f"the profile's storage_cap_mib leaves {max(0, storage_bytes) / MIB:.1f} MiB for "
            f"examples, too little for {LEAST_SLOTS} of {example_bytes} bytes."
        )
    return Size(slots, max(16, journal // PAGE - 16), of_file // PAGE)


def _bytes_of_row(example_bytes: int) -> float:
    """Returns the bytes of pages that one row takes, of its own or as a part of one."""
    row = example_bytes + _ROW_BYTES
    if row <= _CELL_MOST:
        return PAGE / ((PAGE - 8) // row)
    left = _CELL_LEAST + (row - _CELL_LEAST) % (PAGE - 4)
    local = left if left <= _CELL_MOST else _CELL_LEAST
    overflow = -(-(row - local) // (PAGE - 4))
    return PAGE / ((PAGE - 8) // (local + _ROW_BYTES)) + overflow * PAGE
