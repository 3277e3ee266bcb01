"""Random streams: numbers that name them, and where a model keeps the number of its own.

A device, a seed or a round that differs gets random numbers that have nothing in common with the
others' (but for rare equal numbers: they have 31 bits); the same ones get the same numbers again,
on every machine.

The runtime draws from Philox. The key is the operation's `seed`; the upper half of the counter is
its `seed2`, the lower half counts the draws and is not accessible. `toolkit export` writes MARK as
the `seed2` of every random operation. Whoever loads the model writes the number of a stream over
it, which gives 2³¹ streams that never overlap: the runtime takes no more bits of it.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

_BITS = 31  # the runtime keeps the number as a signed integer of 32 bits
MARK = 0x6D61_726B_5EED_5EED
_MARK_BYTES = MARK.to_bytes(8, "little")


def stream_number(*parts: int | str) -> int:
    """Returns a number in [1, 2³¹) that depends on all parts and on their order."""
    text = "\0".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    number: int = int.from_bytes(digest, "big") % (2**_BITS - 1)
    return 1 + number


def draws_random_numbers(model: Path) -> bool:
    """Whether a model has random operations whose stream can be chosen."""
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_MARK_BYTES) >= 0


def in_stream(content: bytes, number: int) -> bytes:
    """Returns a model that draws its random numbers from the stream with this number."""
    return content.replace(_MARK_BYTES, number.to_bytes(8, "little"))
