"""Numbers of independent random streams, from what must make them differ.

A device, a seed or a round that differs gets numbers that have nothing in common with the others';
the same ones get the same numbers again, on every machine.
"""

from __future__ import annotations

import hashlib

_BITS = 62  # a runtime keeps the number as a signed integer of 64 bits


def stream_number(*parts: int | str) -> int:
    """Returns a number in [1, 2⁶²) that depends on all parts and on their order."""
    text = "\0".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    number: int = int.from_bytes(digest, "big") % (2**_BITS - 1)
    return 1 + number
