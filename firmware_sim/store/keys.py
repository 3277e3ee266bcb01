"""The keys of examples: those that the store gives out, and those that are given to it."""

from __future__ import annotations

import hashlib
import re

_OWN = re.compile(r"#[1-9][0-9]{0,17}")
_GIVEN = 1 << 62  # from here on: hashes of keys that were given


def own_key(number: int) -> str:
    """Returns the key of the example that came as this one of all, if it was given none."""
    return f"#{number}"


def is_own(key: str) -> bool:
    """Returns whether a key has the form of `own_key`."""
    return _OWN.fullmatch(key) is not None


def code_of(key: str) -> int:
    """Returns the number under which a key is stored: its own, or a hash of 62 bits."""
    if is_own(key):
        return int(key[1:])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _GIVEN + _GIVEN
