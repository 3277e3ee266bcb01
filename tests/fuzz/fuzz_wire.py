"""Feeds damaged messages to everything that reads bytes from the network.

    python tests/fuzz/fuzz_wire.py --seconds 60 --seed 7

Every input is a message of tests/broker/golden, or its update in codes, changed a few times; the
same seed makes the same inputs. Only `WireError` and `Refused` may come out, and what is accepted
must be what the safetensors library reads. On a crash the input is printed in hex. A fuzzer that is
guided by coverage can drive `one_input` too: `atheris.Setup(sys.argv, one_input); atheris.Fuzz()`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from broker.aggregator.contract import Contract
from broker.errors import WireError
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Refused,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.parts import Assembler
from broker.protocol.quantisation import PACKED, encode_tensors
from broker.protocol.wire import decode

GOLDEN = Path(__file__).parent.parent / "broker" / "protocol" / "golden"
LIMIT = 2**16  # bytes of a message
MESSAGES: tuple[Any, ...] = (Update, Shared, Verdict, DeviceState, AggregatorState)
NUMBERS = (
    *(b"-1", b"0", b"1", b"2", b"3", b"255", b"4294967296", b"1099511627776", b"281474976710655"),
    *(b"-0", b"9223372036854775807", b"18446744073709551616", b"1" * 5000, b"1e999", b"1.0"),
)
TOKENS = (
    *(
        b"null",
        b"true",
        b"NaN",
        b"-Infinity",
        b"[]",
        b"{}",
        b'""',
        b"[[",
        b'{"',
        b",",
        b"\\",
        b'\\"',
    ),
    *(b"\\ud800", b"\\u0000", b"\xff", b"\xed\xa0\x80", b" ", b'"__metadata__":', b'\\"kind\\":'),
    *(b'"F32"', b'"F64"', b'"U8"', b'"I64"', b'"BOOL"', b"[" * 200, b'{\\"a\\":' * 40),
)


def golden() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.safetensors"))}


def packed() -> dict[str, bytes]:
    """The golden update as a device with quantised updates would send it."""
    update = from_bytes(Update, golden()["update"])
    rng = np.random.default_rng(0)
    return {
        f"{encoding}, {whole}": to_bytes(
            replace(
                update,
                encoding=encoding,
                tensors=encode_tensors(update.tensors, encoding, rng, everything=whole),
            )
        )
        for encoding in PACKED
        for whole in (True, False)
    }


def _contract() -> Contract:
    """A fleet in which the golden birth and the golden update are welcome."""
    messages = golden()
    update = from_bytes(Update, messages["update"])
    known = from_bytes(DeviceState, messages["device"]).slice()
    return Contract.of(known, exchange=update.exchange, run=update.run)


CONTRACT = _contract()
DEVICE = "pi-1"


def one_input(data: bytes) -> None:
    """Returns whatever the data are; anything raised is a mistake of ours."""
    for reader in (_decode, _messages, _parts, _update, _birth):
        try:
            reader(data)
        except (WireError, Refused) as error:
            assert 0 < len(str(error)) < 1000, "a refusal is one short sentence"


def _decode(data: bytes) -> None:
    envelope = decode(data, limit=LIMIT)
    read = safetensors.numpy.load(data)
    assert read.keys() == envelope.tensors.keys()
    for name, tensor in envelope.tensors.items():
        assert (tensor.dtype, tensor.shape) == (read[name].dtype, read[name].shape)
        assert tensor.tobytes() == read[name].tobytes()


def _messages(data: bytes) -> None:
    for kind in MESSAGES:
        try:
            message = from_bytes(kind, data, limit=LIMIT)
        except WireError:
            continue
        again = to_bytes(message)
        assert to_bytes(from_bytes(kind, again, limit=2 * LIMIT)) == again


def _parts(data: bytes) -> None:
    assembler = Assembler(limit=LIMIT, held_limit=2 * LIMIT)
    for topic in ("a", "b", "a"):
        assembler.add(topic, data)


def _update(data: bytes) -> None:
    update = CONTRACT.check_update(data, DEVICE)
    assert update.device == DEVICE and update.samples > 0 and update.tensors
    for name, tensor in update.tensors.items():
        assert tensor.shape == CONTRACT.known[name].shape and np.isfinite(tensor).all()


def _birth(data: bytes) -> None:
    assert CONTRACT.check_birth(data, DEVICE).device == DEVICE


# --- inputs ------------------------------------------------------------------------------


def inputs(corpus: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """The corpus, then without end: one of it with one to four changes."""
    yield from corpus
    rng = random.Random(seed)
    while True:
        data = rng.choice(corpus)
        for _ in range(rng.randint(1, 4)):
            data = rng.choice(CHANGES)(rng, data, corpus)
        yield data[: 2 * LIMIT]


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    flipped = bytearray(data)
    for position in rng.choices(range(len(data)), k=rng.randint(1, 3)) if data else ():
        flipped[position] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _truncate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """A piece of another message over, or instead of, a piece of this one."""
    other = rng.choice(corpus)
    begin, end = sorted(rng.randint(0, len(other)) for _ in range(2))
    at = rng.randint(0, len(data))
    return data[:at] + other[begin:end] + data[at + rng.choice((0, end - begin)) :]


def _edit_number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    header, tensors = _parted(data)
    found = list(re.finditer(rb"-?\d+", header))
    if not found:
        return data
    at = rng.choice(found)
    near = b"%d" % (int(at[0][:18]) + rng.randint(-8, 8))
    return _joined(
        header[: at.start()] + rng.choice((near, *NUMBERS)) + header[at.end() :], tensors
    )


def _edit_token(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Between two words of the header, or instead of one."""
    header, tensors = _parted(data)
    words = list(re.finditer(rb'\\?"[^"]*"|[^\s\w]|\w+', header))
    if not words:
        return data
    at = rng.choice(words)
    end = rng.choice((at.start(), at.end()))
    return _joined(header[: at.start()] + rng.choice(TOKENS) + header[end:], tensors)


def _edit_length(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    length = rng.choice((0, 1, 7, len(data) - 8, len(data), 2**20, 2**31, 2**63, 2**64 - 1))
    return (max(0, length)).to_bytes(8, "little") + data[8:]


def _parted(data: bytes) -> tuple[bytes, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end], data[end:]


def _joined(header: bytes, tensors: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + tensors


Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
CHANGES: tuple[Change, ...] = (
    *(_flip, _truncate, _splice, _edit_length),
    *(_edit_number, _edit_number, _edit_number, _edit_token, _edit_token, _edit_token),
)


# --- the loop ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What a run of the fuzzer has done."""

    executions: int
    seconds: float


class Crash(Exception):
    """An input that raised what nobody may raise."""

    def __init__(self, data: bytes, execution: int) -> None:
        super().__init__(f"execution {execution} crashed on these bytes: {data.hex()}")
        self.data = data


def fuzz(
    target: Callable[[bytes], None],
    corpus: Sequence[bytes],
    *,
    seed: int,
    executions: int | None = None,
    seconds: float | None = None,
) -> Ran:
    """Runs the target until one of the limits; `Crash` if it raises."""
    begin = time.monotonic()
    made = itertools.islice(inputs(corpus, seed), executions)
    count = 0
    for count, data in enumerate(made, start=1):
        try:
            target(data)
        except Exception as error:
            raise Crash(data, count) from error
        if seconds is not None and time.monotonic() - begin > seconds:
            break
    return Ran(count, time.monotonic() - begin)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="default %(default)g")
    parser.add_argument("--executions", type=int, help="stop after so many inputs")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    args = parser.parse_args(argv)
    corpus = [*golden().values(), *packed().values()]
    limits = {"seconds": args.seconds, "executions": args.executions}
    try:
        ran = fuzz(one_input, corpus, seed=args.seed, **limits)
    except Crash as crash:
        raise SystemExit(f"{type(crash.__cause__).__name__}: {crash.__cause__}\n{crash}") from crash
    speed = ran.executions / ran.seconds
    print(f"{ran.executions} executions, {speed:.0f} per second, no crash (seed {args.seed})")


if __name__ == "__main__":
    main(sys.argv[1:])
