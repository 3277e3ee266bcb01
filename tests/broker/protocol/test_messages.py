"""Every kind of message is exactly these bytes, and these bytes are exactly this message.

The bytes are in golden/. Should the format ever change on purpose, make them anew with
`python tests/broker/test_messages.py`, and say so to users: fleets of two formats cannot talk.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from broker.errors import Oversized, WireError
from broker.protocol.messages import (
    SMALL,
    AggregatorState,
    DeviceState,
    Message,
    Shared,
    Update,
    Verdict,
    from_bytes,
    to_bytes,
)
from broker.protocol.parts import Assembler, split
from broker.protocol.slice import SharedTensor, Slice
from broker.protocol.wire import decode, encode

GOLDEN = Path(__file__).parent / "golden"
SLICE = Slice.of(
    [
        SharedTensor.of("stem/kernel", (2, 3), "float32", '{"follows":[],"uses":["Conv"]}'),
        SharedTensor.of("stem/bias", (3,), "float32", '{"follows":[],"uses":["Add"]}'),
        SharedTensor.of("stem/gain", (), "float32", '{"follows":[],"uses":["Mul"]}'),
    ]
)
TENSORS = {
    "stem/kernel": np.array([[0.0, -1.5, 2.0**-149], [3.4e38, 1 / 3, -0.0]], np.float32),
    "stem/bias": np.array([1.0, 2.0, 3.0], np.float32),
    "stem/gain": np.array(0.25, np.float32),
}
MESSAGES: dict[str, Message] = {
    "update": Update(
        device="pi-1",
        run="0123456789abcdef",
        round=7,
        nonce="n-1",
        samples=600,
        exchange="delta",
        fingerprint=SLICE.fingerprint,
        tensors={**TENSORS, "stem/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5},
    ),
    "shared": Shared(
        run="0123456789abcdef",
        round=8,
        fingerprint=SLICE.fingerprint,
        last=True,
        tensors=TENSORS,
    ),
    "verdict": Verdict(
        device="pi-1",
        about="update",
        run="0123456789abcdef",
        accepted=False,
        round=7,
        nonce="n-1",
        reason="late",
        text='round 7 is over: “θ” is "newer".',
    ),
    "device": DeviceState.birth(
        "pi-1", SLICE, {"profile": "weak", "threads": 2, "δ": [0.5, None]}, instance="0a1b"
    ),
    "aggregator": AggregatorState(
        status="online",
        run="0123456789abcdef",
        mode="sync",
        exchange="delta",
        merge="samples",
        fingerprint=SLICE.fingerprint,
        epoch=3,
        instance="2c3d",
        round=8,
    ),
}
WHOLE = bytes(range(256)) * 16  # the message of which golden/part is part 1 of 2


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.safetensors").read_bytes()


def golden_part() -> bytes:
    return list(split(WHOLE, 4096))[1]


def make_golden_anew() -> None:
    made = {name: to_bytes(message) for name, message in MESSAGES.items()} | {"part": golden_part()}
    GOLDEN.mkdir(exist_ok=True)
    for name, payload in made.items():
        (GOLDEN / f"{name}.safetensors").write_bytes(payload)


def same(one: Message, other: Message) -> bool:
    """Equal in every field, tensors bit by bit."""
    if type(one) is not type(other):
        return False
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(_same_mapping(a, b) if isinstance(a, dict) else a == b for a, b in pairs)


def _same_mapping(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    def bits(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return value.dtype, value.shape, value.tobytes()

    return {n: bits(v) for n, v in one.items()} == {n: bits(v) for n, v in other.items()}


every_kind = pytest.mark.parametrize("kind", MESSAGES)
every_golden = pytest.mark.parametrize("kind", [*MESSAGES, "part"])


@every_kind
def test_a_message_is_exactly_these_bytes(kind: str) -> None:
    assert to_bytes(MESSAGES[kind]) == golden(kind)


@every_kind
def test_these_bytes_are_exactly_this_message(kind: str) -> None:
    wanted = MESSAGES[kind]
    assert kind == wanted.KIND
    assert same(from_bytes(type(wanted), golden(kind)), wanted)


def test_a_part_is_exactly_these_bytes_both_ways() -> None:
    assert golden_part() == golden("part")
    assembler = Assembler(limit=4096, held_limit=8192)
    assert assembler.add("t", golden("part")) is None
    assert assembler.add("t", next(split(WHOLE, 4096))) == WHOLE


@every_golden
def test_the_library_reads_what_we_write(kind: str) -> None:
    envelope = decode(golden(kind), limit=SMALL)
    loaded = safetensors.numpy.load(golden(kind))
    assert _same_mapping(loaded, dict(envelope.tensors))
    with safetensors.safe_open(GOLDEN / f"{kind}.safetensors", "np") as file:
        assert set(file.keys()) == set(envelope.tensors)
        assert _same_mapping({n: file.get_tensor(n) for n in file.keys()}, loaded)  # noqa: SIM118
        metadata = file.metadata()
    assert metadata.keys() == {"stemshare"}
    assert json.loads(metadata["stemshare"]) == {"kind": kind, **envelope.fields}


@every_golden
def test_every_truncation_is_refused(kind: str) -> None:
    whole = golden(kind)
    assert len(whole) < SMALL
    for length in range(len(whole)):
        with pytest.raises(WireError):
            decode(whole[:length], limit=SMALL)


@every_golden
def test_more_bytes_than_the_header_says_are_refused(kind: str) -> None:
    with pytest.raises(WireError, match=r"^the message has \d+ bytes of data, not \d+\.$"):
        decode(golden(kind) + b"\0", limit=SMALL)


@every_kind
def test_a_flipped_bit_is_read_or_refused_and_nothing_else(kind: str) -> None:
    """All bits of all bytes; what is still read, the library reads alike."""
    whole, outcomes = golden(kind), {"read": 0, "refused": 0}
    for position in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        try:
            envelope = decode(bytes(flipped), limit=SMALL)
        except WireError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        assert _same_mapping(safetensors.numpy.load(bytes(flipped)), dict(envelope.tensors))
        try:
            read = from_bytes(type(MESSAGES[kind]), bytes(flipped))
        except WireError:
            continue
        in_data = position // 8 >= 8 + int.from_bytes(whole[:8], "little")
        assert not (in_data and same(read, MESSAGES[kind]))
    assert outcomes["read"] > 100 and outcomes["refused"] > 500


@every_kind
def test_a_kind_is_not_taken_for_another(kind: str) -> None:
    for other in {type(message) for message in MESSAGES.values()} - {type(MESSAGES[kind])}:
        with pytest.raises(WireError) as caught:
            from_bytes(other, golden(kind))
        said = f"this is a message of kind {kind!r}, not {other.KIND!r}."
        assert str(caught.value) == said


LONG_NAMES = {short: name for name, short in Update.WIRE_NAMES.items()}


def said(kind: str, **changed: Any) -> dict[str, Any]:
    """The golden message's fields, some of them changed."""
    return {**decode(golden(kind), limit=SMALL).fields, **changed}


@pytest.mark.parametrize("kind", ["aggregator", "device"])
def test_what_an_earlier_version_sent_is_understood(kind: str) -> None:
    earlier = (GOLDEN / "earlier" / f"{kind}.safetensors").read_bytes()
    wanted = MESSAGES[kind]
    assert isinstance(wanted, AggregatorState | DeviceState)
    unsaid = {name: type(getattr(wanted, name))() for name in wanted.LATER}
    assert from_bytes(type(wanted), earlier) == replace(wanted, **unsaid)


@every_kind
def test_every_field_must_be_there(kind: str) -> None:
    later: frozenset[str] = getattr(type(MESSAGES[kind]), "LATER", frozenset())
    for sent in said(kind).keys() - later:
        left = {n: v for n, v in said(kind).items() if n != sent}
        name = LONG_NAMES.get(sent, sent) if kind == "update" else sent
        with pytest.raises(WireError, match=f"^a message of kind '{kind}' must say its {name}\\.$"):
            from_bytes(type(MESSAGES[kind]), encode(kind, left))


@every_kind
def test_every_field_has_one_json_type(kind: str) -> None:
    """To Python true is 1 and 1.0 is 1; on the wire they are not."""
    values = {str: "a", bool: True, int: 1, float: 1.0, dict: {}, list: [], type(None): None}
    for sent, value in said(kind).items():
        name = LONG_NAMES.get(sent, sent) if kind == "update" else sent
        for other_type, other in values.items():
            if type(value) is other_type:
                continue
            with pytest.raises(
                WireError, match=f"^{name} of a message of kind '{kind}' has another type\\.$"
            ):
                from_bytes(type(MESSAGES[kind]), encode(kind, said(kind, **{sent: other})))


def test_the_fingerprint_of_an_update_is_in_base64() -> None:
    assert bytes.fromhex(SLICE.fingerprint) == base64.b64decode(said("update")["f"] + "=")
    for text in (
        "",
        "0" * 63,
        "é" * 64,
        "A" * 42,
        "A" * 44,
        "F" * 64,
        "A" * 42 + "B",
        "A" * 42 + "=",
    ):
        payload = encode("update", said("update", f=text))
        assert from_bytes(Update, payload).fingerprint == text, "what is none stays as it is"


def test_fields_of_a_later_version_are_ignored() -> None:
    payload = encode("verdict", said("verdict", priority=[1, {"a": None}]))
    assert from_bytes(Verdict, payload) == MESSAGES["verdict"]


@pytest.mark.parametrize("kind", ["verdict", "device", "aggregator"])
def test_only_updates_and_theta_carry_tensors(kind: str) -> None:
    payload = encode(kind, said(kind), {"a": np.zeros(1, np.float32)})
    with pytest.raises(WireError, match=rf"^a message of kind '{kind}' has no tensors\.$"):
        from_bytes(type(MESSAGES[kind]), payload)


def test_a_message_without_theta_is_small() -> None:
    verdict = MESSAGES["verdict"]
    assert isinstance(verdict, Verdict)
    long = replace(verdict, text="x" * SMALL)
    with pytest.raises(Oversized):
        from_bytes(Verdict, to_bytes(long))


def test_a_birth_says_which_tensors_are_only_received() -> None:
    first, *others = SLICE.tensors
    for sent, only in ((SLICE, False), (Slice.of(others), not others), (Slice.of([]), True)):
        birth = DeviceState.birth("pi", SLICE, {}, sent=sent)
        birth = from_bytes(DeviceState, to_bytes(birth))
        assert birth.slice().fingerprint == SLICE.fingerprint
        assert birth.receives_only == only
        assert birth.tensors_shared[first.name].get("received", False) == (sent is not SLICE)


def test_a_birth_describes_its_slice() -> None:
    birth = from_bytes(DeviceState, golden("device"))
    assert birth.online and birth.fingerprint == SLICE.fingerprint
    without_roles = tuple(replace(tensor, role="") for tensor in SLICE.tensors)
    by_name = {t.name: t for t in birth.slice().tensors}
    assert by_name == {t.name: t for t in without_roles}
    assert birth.slice().fingerprint == SLICE.fingerprint


def test_a_will_shares_nothing() -> None:
    gone = from_bytes(DeviceState, to_bytes(DeviceState(device="pi-1", online=False)))
    assert gone == DeviceState(device="pi-1", online=False)
    assert gone.slice().tensors == ()


GOOD = {"shape": [2, 3], "dtype": "float32", "fingerprint": "f" * 64}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {**GOOD, "shape": None},
        {**GOOD, "shape": [2, "3"]},
        {**GOOD, "shape": [True]},
        {**GOOD, "shape": [2.0]},
        {**GOOD, "shape": [-1]},
        {**GOOD, "shape": [10**4000]},
        {**GOOD, "shape": [1] * 9},
        {**GOOD, "dtype": 4},
        {**GOOD, "dtype": "f" * 17},
        {**GOOD, "fingerprint": 0},
        {"shape": [], "dtype": "float32"},
    ],
)
def test_a_birth_with_a_tensor_that_is_none_is_refused(entry: Any) -> None:
    payload = encode("device", said("device", tensors_shared={"stem/bias": GOOD, "odd": entry}))
    birth = from_bytes(DeviceState, payload)
    with pytest.raises(WireError, match=r"^tensor 'odd' of a birth is not described\.$"):
        birth.slice()


def test_a_birth_cannot_make_us_repeat_a_book() -> None:
    birth = MESSAGES["device"]
    assert isinstance(birth, DeviceState)
    birth = replace(birth, tensors_shared={"n" * 100_000: GOOD})
    with pytest.raises(WireError, match=f"^tensor '{'n' * 80}' of a birth is not described"):
        birth.slice()


if __name__ == "__main__":
    make_golden_anew()
