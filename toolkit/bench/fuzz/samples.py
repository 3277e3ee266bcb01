"""A small fleet and valid messages of it: what damaged ones are made from."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from broker.aggregator.contract import Contract
from broker.protocol.messages import (
    AggregatorState,
    DeviceState,
    Reason,
    Shared,
    Update,
    Verdict,
    to_bytes,
)
from broker.protocol.quantisation import ENCODINGS, encode_tensors
from broker.protocol.slice import SharedTensor, Slice, Tensors
from broker.protocol.topics import Topics

DEVICE, FLEET, RUN = "pi-1", "orchard", "run-1"
NONCE = "0" * 32  # as long as the one of a device, which takes its place where it matters
TOPICS = Topics(FLEET)
SHAPES: dict[str, tuple[int, ...]] = {"first/kernel": (6, 5), "first/bias": (5,), "second": ()}
SLICE = Slice.of(SharedTensor.of(n, s, "float32", "{}") for n, s in SHAPES.items())
CONTRACT = Contract.of(SLICE, exchange="delta", run=RUN)
_ODD = (0.0, -0.0, 1e-38, 1e30, 3.4e38, -3.4e38, float("nan"), float("inf"), float("-inf"))


def tensors(rng: random.Random, *, dtype: str = "float32", odd: float = 0.0) -> Tensors:
    """Values for every tensor; with probability `odd` one of them holds something strange."""
    draw = np.random.default_rng(rng.getrandbits(32))
    made: dict[str, Any] = {n: np.asarray(draw.normal(size=s), dtype) for n, s in SHAPES.items()}
    if rng.random() < odd:
        name = rng.choice(list(made))
        match rng.randrange(4):
            case 0:
                with np.errstate(over="ignore"):
                    made[name] = np.full_like(made[name], rng.choice(_ODD))
            case 1:
                del made[name]
            case 2:
                made[name] = made[name].reshape(*made[name].shape, 1)
            case 3:
                made[name] = made[name].astype(rng.choice(("float64", "int32", "uint8")))
    return made


def update(rng: random.Random, *, device: str = DEVICE, odd: float = 0.0) -> Update:
    """An update in one of the encodings."""
    encoding = rng.choice(ENCODINGS)
    plain = Update(
        device=device,
        run=rng.choice((RUN, RUN, RUN, "run-2")) if odd else RUN,
        round=rng.choice((0, 0, 1, 2, 3, 2**53, -1)) if odd else 0,
        nonce=f"{rng.randrange(10_000):032d}",
        samples=rng.choice((1, 10, 10**9, 0, -1)) if odd else 10,
        exchange="delta",
        fingerprint=SLICE.fingerprint,
        tensors=tensors(rng),
    )
    draw = np.random.default_rng(rng.getrandbits(32))
    codes = encode_tensors(plain.tensors, encoding, draw, everything=rng.random() < 0.5)
    if rng.random() < odd:
        return replace(plain, tensors=tensors(rng, odd=1.0))
    return replace(plain, encoding=encoding, tensors=codes)


def shared(rng: random.Random, *, odd: float = 0.0) -> Shared:
    """θ_shared, mostly of the fleet's run and of a near round."""
    return Shared(
        run=rng.choice((RUN, RUN, RUN, "run-2")) if odd else RUN,
        round=rng.choice((0, 1, 2, 3, 4, 10**6, 2**53, -1)) if odd else 0,
        fingerprint=SLICE.fingerprint,
        last=bool(odd) and rng.random() < 0.05,
        tensors=tensors(rng, dtype=rng.choice(("float32", "float16")), odd=odd),
    )


def verdict(rng: random.Random, *, odd: float = 0.0) -> Verdict:
    """An answer to a birth or an update."""
    accepted = not odd or rng.random() < 0.8
    return Verdict(
        device=DEVICE,
        about=rng.choice(("join", "update")),
        run=rng.choice((RUN, RUN, RUN, "run-2")) if odd else RUN,
        accepted=accepted,
        round=rng.choice((0, 1, 2, -1)) if odd else 0,
        nonce=rng.choice((NONCE, "", SLICE.fingerprint)),
        reason="" if accepted else rng.choice([*Reason, "\x1b[2J"]),
        text="" if accepted else "\x1b[31mno\n\u202eyes",
    )


def birth(rng: random.Random, *, device: str = DEVICE, odd: float = 0.0) -> DeviceState:
    """A birth, or what a broker says of a device that is gone."""
    if odd and rng.random() < 0.2:
        return DeviceState(device=device, online=False)
    found = DeviceState.birth(device, SLICE, {"profile": "weak", "branch": "\u202e", "deep": [{}]})
    if rng.random() < odd:
        described = dict(found.tensors_shared)
        described[rng.choice([*described, "\x1b"])] = {"shape": [2**40], "dtype": "", "x": None}
        return replace(found, tensors_shared=described)
    return found


def state(rng: random.Random, *, odd: float = 0.0) -> AggregatorState:
    """What an aggregator says of itself."""
    return AggregatorState(
        status=rng.choice(("online", "online", "offline", "finished", "")) if odd else "online",
        run=rng.choice((RUN, RUN, RUN, "run-2")) if odd else RUN,
        mode=rng.choice(("sync", "async", "")) if odd else "sync",
        exchange=rng.choice(("delta", "delta", "gradient", "")) if odd else "delta",
        merge="samples",
        fingerprint=SLICE.fingerprint,
        epoch=rng.choice((0, 1, 2, 10**9)) if odd else 1,
        instance=rng.choice(("a", "b")),
        round=rng.choice((0, 1, 2, 3, 10**6)) if odd else 0,
    )


class _Forger:
    """Signs with 64 bytes that nobody's key has made."""

    def sign(self, message: bytes) -> bytes:
        return bytes(64)


def signed_message() -> bytes:
    """A verdict with a signature that is wrong, and looks right."""
    rng = random.Random(0)
    return to_bytes(verdict(rng), topic=TOPICS.verdict(DEVICE), signer=_Forger())


def valid_messages() -> dict[str, bytes]:
    """One of each kind, and an update in each encoding."""
    rng = random.Random(0)
    made: dict[str, bytes] = {
        "shared": to_bytes(shared(rng)),
        "verdict": to_bytes(verdict(rng)),
        "device": to_bytes(birth(rng)),
        "aggregator": to_bytes(state(rng)),
    }
    while len(made) < 4 + len(ENCODINGS):
        new = update(rng)
        made[f"update as {new.encoding}"] = to_bytes(new)
    return made
