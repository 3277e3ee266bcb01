"""Changes that turn a valid input into a damaged one, and keep enough of it to reach deep.

They know two layouts: a file with a header behind its length (safetensors), of which the header is
changed and the length made right again, and anything else, which is changed as one piece.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence

LARGEST = 2**16  # bytes of an input
_NUMBERS = (
    *(b"-1", b"0", b"1", b"2", b"3", b"255", b"4294967296", b"1099511627776", b"281474976710655"),
    *(b"-0", b"9223372036854775807", b"18446744073709551616", b"1" * 5000, b"1e999", b"1.0"),
)
_TOKENS = (
    *(b"null", b"true", b"NaN", b"-Infinity", b"[]", b"{}", b'""', b"[[", b'{"', b",", b"\\"),
    *(b'\\"', b"\\ud800", b"\\u0000", b"\xff", b"\xed\xa0\x80", b" ", b'"__metadata__":'),
    *(b'\\"kind\\":', b'"F32"', b'"F64"', b'"U8"', b'"I64"', b'"BOOL"', b"[" * 200),
    *(b'{\\"a\\":' * 40, b"\n", b"=", b"'", b"inf", b"\x1b[2J", b"\xe2\x80\xae"),
)
Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def inputs(
    seeds: Sequence[bytes], seed: int, mutate: Callable[[random.Random, bytes], bytes]
) -> Iterator[bytes]:
    """Yields the seeds, then without end one of them changed one to four times."""
    yield from seeds
    rng = random.Random(seed)
    while True:
        data = rng.choice(seeds)
        for _ in range(rng.randint(1, 4)):
            data = mutate(rng, data)
        yield data[:LARGEST]


def change(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Returns the data with one change; `others` are inputs that pieces may be taken from."""
    return rng.choice(CHANGES)(rng, data, others)


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    flipped = bytearray(data)
    for position in rng.choices(range(len(data)), k=rng.randint(1, 3)) if data else ():
        flipped[position] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _truncate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A piece of another input over, or between, pieces of this one."""
    other = rng.choice(others) if others else data
    begin, end = sorted(rng.randint(0, len(other)) for _ in range(2))
    at = rng.randint(0, len(data))
    return data[:at] + other[begin:end] + data[at + rng.choice((0, end - begin)) :]


def _edit_number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    head, text, tail = _parted(data)
    found = list(re.finditer(rb"-?\d+", text))
    if not found:
        return data
    at = rng.choice(found)
    near = b"%d" % (int(at[0][:18]) + rng.randint(-8, 8))
    new = rng.choice((near, *_NUMBERS))
    return _joined(head, text[: at.start()] + new + text[at.end() :], tail)


def _edit_token(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Between two words of the text, or instead of one."""
    head, text, tail = _parted(data)
    words = list(re.finditer(rb'\\?"[^"]*"|[^\s\w]|\w+', text))
    if not words:
        return data
    at = rng.choice(words)
    end = rng.choice((at.start(), at.end()))
    return _joined(head, text[: at.start()] + rng.choice(_TOKENS) + text[end:], tail)


def _swap_words(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """One word of the text in the place of another: names, types and values change places."""
    head, text, tail = _parted(data)
    words = list(re.finditer(rb'\\?"[^"]*"|\[[^\]\[]*\]|[\w.-]+', text))
    if not words:
        return data
    at, other = rng.choice(words), rng.choice(words)
    return _joined(head, text[: at.start()] + other[0] + text[at.end() :], tail)


def _edit_length(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    length = rng.choice((0, 1, 7, len(data) - 8, len(data), 2**20, 2**31, 2**63, 2**64 - 1))
    return (max(0, length)).to_bytes(8, "little") + data[8:]


def _parted(data: bytes) -> tuple[bool, bytes, bytes]:
    """Whether there is a length in front, the text, and what follows it."""
    end = 8 + int.from_bytes(data[:8], "little")
    if 8 < end <= len(data):
        return True, data[8:end], data[end:]
    return False, data, b""


def _joined(with_length: bool, text: bytes, rest: bytes) -> bytes:
    return (len(text).to_bytes(8, "little") if with_length else b"") + text + rest


CHANGES: tuple[Change, ...] = (
    *(_flip, _truncate, _splice, _edit_length),
    *(_edit_number, _edit_number, _edit_number),
    *(_edit_token, _edit_token, _edit_token, _swap_words, _swap_words),
)
