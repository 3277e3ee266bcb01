"""Targets that read one message: the wire format, the messages, and their parts."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import safetensors.numpy

from broker.errors import WireError
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    M,
    Offer,
    Refused,
    Rollout,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.parts import SMALLEST, Assembler, split
from broker.protocol.wire import decode, encode
from toolkit.bench.fuzz.changes import LARGEST
from toolkit.bench.fuzz.parties import frames
from toolkit.bench.fuzz.samples import CONTRACT, DEVICE, signed_message, valid_messages
from toolkit.bench.fuzz.target import Mutate, Parser, Target, check, check_sentence

_KEY = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")


def read_wire(data: bytes) -> None:
    """What is accepted must be what the safetensors library reads."""
    try:
        envelope = decode(data, limit=LARGEST)
    except WireError as error:
        check_sentence(error)
        return
    read = safetensors.numpy.load(data)
    check(read.keys() == envelope.tensors.keys(), "the library reads other tensors.")
    for name, tensor in envelope.tensors.items():
        same = (tensor.dtype, tensor.shape) == (read[name].dtype, read[name].shape)
        check(same and tensor.tobytes() == read[name].tobytes(), "the library reads other numbers.")


def read_messages(data: bytes) -> None:
    """Every kind of message, and the checks of an aggregator on births and updates."""
    for read in _KINDS:
        read(data)
    for read in (_update, _birth, _signed):
        try:
            read(data)
        except (WireError, Refused) as error:
            check_sentence(error)


def _again(kind: type[M]) -> Callable[[bytes], None]:
    """Returns a reader of one kind; what it reads must stay the same when it is written."""

    def read(data: bytes) -> None:
        try:
            message = from_bytes(kind, data, limit=LARGEST)
        except WireError as error:
            check_sentence(error)
            return
        written = to_bytes(message)
        twice = to_bytes(from_bytes(kind, written, limit=4 * LARGEST))
        check(twice == written, "a message that is read and written is another one.")

    return read


_KINDS = (
    *(_again(Update), _again(Shared), _again(Verdict)),
    *(_again(DeviceState), _again(AggregatorState), _again(Offer), _again(Rollout)),
)


def _update(data: bytes) -> None:
    update = CONTRACT.check_update(data, DEVICE)
    check(update.device == DEVICE and update.samples > 0, "an update of nobody is accepted.")
    check(bool(update.tensors), "an update without tensors is accepted.")
    for name, tensor in update.tensors.items():
        check(tensor.shape == CONTRACT.known[name].shape, "a tensor of another shape is accepted.")
        check(bool(np.isfinite(tensor).all()), "a tensor that is not finite is accepted.")


def _birth(data: bytes) -> None:
    check(CONTRACT.check_birth(data, DEVICE).device == DEVICE, "a birth of another is accepted.")


def _signed(data: bytes) -> None:
    from_bytes(Verdict, data, topic="a", key=_KEY)
    check(False, "a message is taken that nobody has signed.")


def read_parts(data: bytes) -> None:
    """Several packets, on two topics, for one assembler with little room."""
    assembler = Assembler(limit=LARGEST, held_limit=2 * LARGEST)
    for step in frames.split(data):
        try:
            whole = assembler.add("ab"[step.what % 2], step.payload)
        except WireError as error:
            check_sentence(error)
            continue
        check(whole is None or len(whole) <= LARGEST, "a message above the limit is passed on.")


def _parts_seeds() -> list[bytes]:
    rng = random.Random(1)
    wholes = [rng.randbytes(size) for size in (1, 5_000, 12_000)]
    return [
        frames.join([frames.Step(0, part) for part in split(whole, SMALLEST)]) for whole in wholes
    ]


def _parts_mutator(seeds: list[bytes]) -> Mutate:
    known = [step for seed in seeds for step in frames.split(seed)]

    def invent(rng: random.Random) -> frames.Step:
        """A part that may contradict others of its digest, in small numbers and few digests."""
        digest = rng.choice("abc") * 64
        numbers = {"index": rng.randrange(4), "count": rng.randrange(5), "bytes": rng.choice(SIZES)}
        piece = np.zeros(rng.choice((0, 1, 10, 3_584)), rng.choice(("uint8", "uint8", "int8")))
        made = encode("part", {"digest": digest, **numbers}, {"part": piece})
        return rng.choice((rng.choice(known), frames.Step(rng.randrange(2), made)))

    return lambda rng, data: frames.mutate(rng, data, invent)


SIZES = (1, 10, 3_584, 7_168, LARGEST, LARGEST + 1, -1)


TARGETS = (
    Target(
        "wire",
        "the safetensors format of all messages and state files",
        lambda: list(valid_messages().values()),
        lambda _: Parser(read_wire),
    ),
    Target(
        "messages",
        "the fields and signatures of each kind of message, and the aggregator's checks",
        lambda: [*valid_messages().values(), signed_message()],
        lambda _: Parser(read_messages),
    ),
    Target(
        "parts",
        "messages in parts",
        _parts_seeds,
        lambda _: Parser(read_parts),
        mutator=_parts_mutator,
    ),
)
