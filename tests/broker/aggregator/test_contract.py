"""What an update must be: for every reason to refuse one, an input that is refused for it alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from broker.aggregator.contract import LARGEST_NORM, MAX_SAMPLES, Contract
from broker.errors import SliceError
from broker.protocol.messages import SMALL, DeviceState, Reason, Refused, Shared, Update, to_bytes
from broker.protocol.quantisation import ENCODINGS, encode_tensors
from broker.protocol.slice import SharedTensor, Slice
from broker.protocol.wire import HEADER_LIMIT, decode, encode

RUN = "0123456789abcdef"
BIG = 300_000  # elements; more than BLAS computes in one go


def shared_tensor(name: str, *shape: int, role: str = "Conv") -> SharedTensor:
    return SharedTensor.of(name, shape, "float32", f'{{"op":"{role}"}}')


STEM = (shared_tensor("stem/kernel", 2, 3), shared_tensor("stem/bias", 3))
HEAD = (shared_tensor("head/gain"), shared_tensor("head/none", 0, 4), shared_tensor("head/w", BIG))
KNOWN = Slice.of(STEM + HEAD)
CONTRACT = Contract.of(KNOWN, exchange="delta", run=RUN)


def values(tensors: tuple[SharedTensor, ...] = STEM + HEAD) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors}


GOOD = Update(
    device="pi-1",
    run=RUN,
    round=7,
    nonce="n-1",
    samples=600,
    exchange="delta",
    fingerprint=KNOWN.fingerprint,
    tensors=values(),
)


def refused(
    check: Callable[[bytes, str], object], payload: bytes, sender: str = "pi-1"
) -> tuple[Reason, str]:
    with pytest.raises(Refused) as caught:
        check(payload, sender)
    text = str(caught.value)
    assert text.endswith(".") and len(text.splitlines()) == 1 and len(text) < 400
    return caught.value.reason, text


def refused_update(payload: bytes, sender: str = "pi-1") -> tuple[Reason, str]:
    return refused(CONTRACT.check_update, payload, sender)


def raw_update(**changed: Any) -> bytes:
    """The good update with fields that no `Update` could have."""
    envelope = decode(to_bytes(GOOD), limit=2 * SMALL)
    new = {Update.WIRE_NAMES.get(name, name): value for name, value in changed.items()}
    return encode("update", {**envelope.fields, **new}, envelope.tensors)


# --- updates that are taken --------------------------------------------------------------


def test_a_good_update_is_taken_as_it_is_and_not_copied() -> None:
    payload = to_bytes(GOOD)
    taken = CONTRACT.check_update(payload, "pi-1")
    said = ("device", "run", "round", "nonce", "samples", "exchange", "fingerprint")
    assert [getattr(taken, name) for name in said] == [getattr(GOOD, name) for name in said]
    assert taken.tensors.keys() == GOOD.tensors.keys()
    received = np.frombuffer(payload, np.uint8)
    for name, tensor in taken.tensors.items():
        np.testing.assert_array_equal(tensor, GOOD.tensors[name], strict=True)
        assert tensor.size == 0 or np.shares_memory(tensor, received)
        assert not tensor.flags.writeable


@pytest.mark.parametrize(
    "shared", [STEM, HEAD, STEM[:1], (HEAD[0],), (HEAD[1],), (HEAD[2], STEM[1])], ids=str
)
def test_a_device_may_share_a_subset(shared: tuple[SharedTensor, ...]) -> None:
    update = replace(GOOD, fingerprint=Slice.of(shared).fingerprint, tensors=values(shared))
    taken = CONTRACT.check_update(to_bytes(update), "pi-1")
    assert set(taken.tensors) == {tensor.name for tensor in shared}


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": 1},
        {"samples": MAX_SAMPLES},
        {"round": 0},
        {"round": 2**53 - 1},
        {"nonce": "n"},
        {"nonce": "n" * 64},
    ],
    ids=str,
)
def test_the_extremes_are_taken(changed: dict[str, Any]) -> None:
    CONTRACT.check_update(to_bytes(replace(GOOD, **changed)), "pi-1")


def test_the_largest_message_holds_every_update() -> None:
    assert CONTRACT.largest_message == HEADER_LIMIT + 4 * (2 * 3 + 3 + 1 + 0 + BIG)
    assert len(to_bytes(GOOD)) < CONTRACT.largest_message


# --- updates that are refused ------------------------------------------------------------


def test_an_oversized_update() -> None:
    most = CONTRACT.largest_message
    payload = to_bytes(GOOD)
    assert refused_update(payload + bytes(most + 1 - len(payload))) == (
        Reason.OVERSIZED,
        f"the message has {most + 1} bytes; at most {most} are taken.",
    )
    reason, _ = refused_update(payload + bytes(most - len(payload)))
    assert reason is Reason.MALFORMED


def test_malformed_updates() -> None:
    assert refused_update(b"") == (
        Reason.MALFORMED,
        "the message is cut off before its header.",
    )
    theta = to_bytes(Shared(run=RUN, round=7, fingerprint="", tensors=values()))
    assert refused_update(theta) == (
        Reason.MALFORMED,
        "this is a message of kind 'shared', not 'update'.",
    )


@pytest.mark.parametrize(
    "changed", [{"nonce": ""}, {"nonce": "n" * 65}, {"round": -1}, {"round": 2**53}], ids=str
)
def test_a_nonce_or_round_that_cannot_be(changed: dict[str, Any]) -> None:
    assert refused_update(to_bytes(replace(GOOD, **changed))) == (
        Reason.MALFORMED,
        "the update's nonce or round cannot be right.",
    )


@pytest.mark.parametrize("field", ["samples", "round"])
@pytest.mark.parametrize("value", [True, "600", 600.0, 6e2, None, [600], {}], ids=repr)
def test_numbers_of_another_type(field: str, value: Any) -> None:
    assert refused_update(raw_update(**{field: value})) == (
        Reason.MALFORMED,
        f"{field} of a message of kind 'update' has another type.",
    )


@pytest.mark.parametrize("samples", [0, -1, MAX_SAMPLES + 1, 2**64, 10**4000, -(10**4000)])
def test_samples_that_no_device_holds(samples: int) -> None:
    assert refused_update(to_bytes(replace(GOOD, samples=samples))) == (
        Reason.BAD_SAMPLES,
        "a device holds 1 to 1000000000 samples, not that many.",
    )


def test_an_update_of_another_device() -> None:
    assert refused_update(to_bytes(GOOD), sender="pi-2") == (
        Reason.FOREIGN,
        "the message names another device than its topic.",
    )


@pytest.mark.parametrize("sender", ["", "aggregator", "pi 1", "x" * 64])
def test_a_sender_that_cannot_be(sender: str) -> None:
    reason, text = refused_update(to_bytes(replace(GOOD, device=sender)), sender)
    assert reason is Reason.FOREIGN
    assert text.startswith(f"a device cannot be called {sender!r}: ")


def test_an_update_of_another_run() -> None:
    assert refused_update(to_bytes(replace(GOOD, run="fedcba9876543210"))) == (
        Reason.FOREIGN,
        "the update belongs to another run of the fleet.",
    )


def test_another_exchange() -> None:
    assert refused_update(to_bytes(replace(GOOD, exchange="gradient"))) == (
        Reason.WRONG_EXCHANGE,
        "the fleet exchanges deltas; the update is a 'gradient'.",
    )
    _, text = refused_update(to_bytes(replace(GOOD, exchange="x" * 10_000)))
    assert text == f"the fleet exchanges deltas; the update is a '{'x' * 20}'."


def test_no_tensor() -> None:
    nothing = replace(GOOD, tensors={}, fingerprint=Slice.of(()).fingerprint)
    assert refused_update(to_bytes(nothing)) == (
        Reason.WRONG_NAME,
        "the update holds no tensor.",
    )


def with_tensors(**changed: npt.NDArray[Any]) -> bytes:
    """The good update, tensors put in place of its own or beside them."""
    new = {name.replace("__", "/"): array for name, array in changed.items()}
    return to_bytes(replace(GOOD, tensors=GOOD.tensors | new))


def test_a_tensor_that_nobody_knows() -> None:
    assert refused_update(with_tensors(tail__kernel=np.zeros(1, np.float32))) == (
        Reason.WRONG_NAME,
        "the fleet knows no tensor 'tail/kernel'.",
    )
    _, text = refused_update(with_tensors(**{"x" * 10_000: np.zeros(1, np.float32)}))
    assert text == f"the fleet knows no tensor '{'x' * 80}'."


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (), (2, 4), (0, 3)])
def test_a_tensor_of_another_shape(shape: tuple[int, ...]) -> None:
    assert refused_update(with_tensors(stem__kernel=np.zeros(shape, np.float32))) == (
        Reason.WRONG_SHAPE,
        f"tensor 'stem/kernel' has shape {shape}, and in the fleet (2, 3).",
    )


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8"])
def test_a_tensor_of_another_dtype(dtype: str) -> None:
    assert refused_update(with_tensors(stem__bias=np.zeros(3, dtype))) == (
        Reason.WRONG_DTYPE,
        f"tensor 'stem/bias' is {dtype}, not float32.",
    )


@pytest.mark.parametrize("fingerprint", ["", "0" * 64, Slice.of(STEM).fingerprint])
def test_a_fingerprint_of_something_else(fingerprint: str) -> None:
    assert refused_update(to_bytes(replace(GOOD, fingerprint=fingerprint))) == (
        Reason.WRONG_FINGERPRINT,
        "the update's fingerprint is not that of its tensors in this fleet.",
    )


def test_equal_names_and_shapes_in_another_role() -> None:
    other = Slice.of((STEM[0], shared_tensor("stem/bias", 3, role="Mul"), *HEAD))
    reason, _ = refused_update(to_bytes(replace(GOOD, fingerprint=other.fingerprint)))
    assert reason is Reason.WRONG_FINGERPRINT


@pytest.mark.parametrize("position", [0, 1, BIG // 2, BIG - 2, BIG - 1])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, 1.1e12, -3e38], ids=str)
def test_one_number_beyond_all_training_anywhere(position: int, value: float) -> None:
    tensor = GOOD.tensors["head/w"].copy()
    tensor[position] = value
    assert refused_update(with_tensors(head__w=tensor)) == (
        Reason.NOT_FINITE,
        "tensor 'head/w' holds NaN, infinity, or numbers beyond all training.",
    )


def test_infinities_do_not_cancel() -> None:
    tensor = np.zeros(BIG, np.float32)
    tensor[0], tensor[-1] = np.inf, -np.inf
    reason, _ = refused_update(with_tensors(head__w=tensor))
    assert reason is Reason.NOT_FINITE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e12])
def test_a_scalar_is_looked_at_too(value: float) -> None:
    reason, text = refused_update(with_tensors(head__gain=np.array(value, np.float32)))
    assert reason is Reason.NOT_FINITE and "'head/gain'" in text


def test_the_norm_counts_and_not_the_largest_number() -> None:
    """√n·x with n elements x each: just below and just above the largest norm."""
    for factor, taken in ((0.99, True), (1.01, False)):
        each = factor * LARGEST_NORM / np.sqrt(BIG)
        payload = with_tensors(head__w=np.full(BIG, each, np.float32))
        if taken:
            CONTRACT.check_update(payload, "pi-1")
        else:
            assert refused_update(payload)[0] is Reason.NOT_FINITE


def test_the_first_thing_wrong_is_told() -> None:
    """Cheap checks come before those that read every number."""
    worst = replace(
        GOOD,
        device="pi-2",
        run="other",
        nonce="",
        exchange="gradient",
        samples=0,
        fingerprint="",
        tensors={"stem/bias": np.full(3, np.nan, np.float32)},
    )
    mended: list[tuple[dict[str, Any], Reason]] = [
        ({}, Reason.FOREIGN),
        ({"device": "pi-1"}, Reason.FOREIGN),
        ({"run": RUN}, Reason.MALFORMED),
        ({"nonce": "n"}, Reason.WRONG_EXCHANGE),
        ({"exchange": "delta"}, Reason.BAD_SAMPLES),
        ({"samples": 1}, Reason.WRONG_FINGERPRINT),
        ({"fingerprint": Slice.of(STEM[1:]).fingerprint}, Reason.NOT_FINITE),
    ]
    for mend, reason in mended:
        worst = replace(worst, **mend)
        assert refused_update(to_bytes(worst))[0] is reason


# --- quantised updates -------------------------------------------------------------------

CODED = (
    shared_tensor("conv/kernel", 401, 3),
    shared_tensor("conv/bias", 3),
    shared_tensor("odd", 5, 13),
)
WIDE = Contract.of(Slice.of(CODED), exchange="delta", run=RUN)


SHAPES = {tensor.name: tensor.shape for tensor in CODED}
# In the order of names: one scale of conv/bias, three of conv/kernel, one of odd, then codes.
SCALES = {"conv/bias": 0, "conv/kernel": 2, "odd": 8}
FIRST_CODE = 10


def coded(encoding: str, **changed: Any) -> Update:
    """A good quantised update, with fields changed."""
    sent = encode_tensors(values(CODED), encoding, np.random.default_rng(1), everything=True)
    fingerprint = Slice.of(CODED).fingerprint
    good = replace(GOOD, encoding=encoding, fingerprint=fingerprint, tensors=sent)
    return replace(good, **changed)


def codes(encoding: str) -> npt.NDArray[Any]:
    """The bytes of a good update, to be damaged."""
    return coded(encoding).tensors["*"].copy()


def refused_coded(encoding: str, **changed: Any) -> tuple[Reason, str]:
    return refused(WIDE.check_update, to_bytes(coded(encoding, **changed)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_taken_as_float32(encoding: str) -> None:
    payload = to_bytes(coded(encoding))
    assert len(payload) < WIDE.largest_message
    taken = WIDE.check_update(payload, "pi-1")
    assert taken.encoding == "float32"
    assert taken.tensors.keys() == {tensor.name for tensor in CODED}
    step = {"float32": 0, "float16": 2e-3, "int8": 4 / 127, "int4": 4 / 7}[encoding]
    for name, value in values(CODED).items():
        assert taken.tensors[name].dtype == np.float32
        np.testing.assert_allclose(taken.tensors[name], value, rtol=0, atol=step)
    again = WIDE.check_record(payload)
    for name, tensor in taken.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], tensor, strict=True)


@pytest.mark.parametrize("encoding", ["", "int2", "FLOAT32", "x" * 1000], ids=len)
def test_an_unknown_encoding(encoding: str) -> None:
    update = replace(coded("float32"), encoding=encoding)
    assert refused(WIDE.check_update, to_bytes(update)) == (
        Reason.WRONG_ENCODING,
        f"numbers are sent as float32, float16, int8, int4, not as {encoding[:20]!r}.",
    )


@pytest.mark.parametrize("said", ENCODINGS)
@pytest.mark.parametrize("other", ENCODINGS)
def test_tensors_of_another_encoding_than_said(said: str, other: str) -> None:
    if said != other:
        update = replace(coded(other), encoding=said)
        reason, _ = refused(WIDE.check_update, to_bytes(update))
        assert reason in (Reason.WRONG_DTYPE, Reason.WRONG_SHAPE, Reason.WRONG_NAME)


def test_numbers_of_another_dtype() -> None:
    signed = codes("int8").view(np.int8)
    assert refused_coded("int8", tensors={"*": signed}) == (
        Reason.WRONG_DTYPE,
        "the tensor of int8 codes is int8, not uint8.",
    )
    half = coded("float16").tensors
    wide = half | {"odd": half["odd"].astype(np.float32)}
    assert refused_coded("float16", tensors=wide) == (
        Reason.WRONG_DTYPE,
        "tensor 'odd' is float32, not float16.",
    )


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@pytest.mark.parametrize("size", [0, 1, -1, 2])
def test_more_or_fewer_bytes(encoding: str, size: int) -> None:
    right = len(codes(encoding))
    wrong = np.zeros(right + size if size else 0, np.uint8)
    assert refused_coded(encoding, tensors={"*": wrong}) == (
        Reason.WRONG_SHAPE,
        f"the tensor of {encoding} codes has shape ({len(wrong)},), and in the fleet ({right},).",
    )
    assert refused_coded(encoding, tensors={"*": codes(encoding)[None]})[0] is Reason.WRONG_SHAPE


@pytest.mark.parametrize("encoding", ["int8", "int4"])
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize(
    "half",
    [0x7FC0, 0x7F80, 0xFF80, 0xBF80, 0x0000, 0x8000, 0x0001, 0x007F, 0x5368 + 1],
    ids=["nan", "inf", "-inf", "-1", "0", "-0", "subnormal", "largest subnormal", "1e12"],
)
def test_a_scale_that_is_none(encoding: str, name: str, half: int) -> None:
    packed = codes(encoding)
    packed[SCALES[name] :][:2].view("<u2")[0] = half
    assert refused_coded(encoding, tensors={"*": packed}) == (
        Reason.BAD_SCALE,
        f"tensor {name!r} has a scale that is NaN, not positive, or far too large.",
    )


def test_the_smallest_and_the_largest_scale_are_taken() -> None:
    for half in (0x0080, 0x5368):
        packed = np.zeros_like(codes("int8"))
        packed[:FIRST_CODE].view("<u2")[:] = half
        WIDE.check_update(to_bytes(coded("int8", tensors={"*": packed})), "pi-1")


@pytest.mark.parametrize("encoding", ["int8", "int4"])
def test_codes_of_some_tensors_say_of_which(encoding: str) -> None:
    some = CODED[1:]
    sent = encode_tensors(values(some), encoding, np.random.default_rng(1), everything=False)
    fingerprint = Slice.of(some).fingerprint
    payload = to_bytes(coded(encoding, tensors=sent, fingerprint=fingerprint))
    taken = WIDE.check_update(payload, "pi-1").tensors
    assert taken.keys() == {"conv/bias", "odd"}
    again = WIDE.check_record(payload).tensors
    for name, tensor in taken.items():
        np.testing.assert_allclose(tensor, values(some)[name], rtol=0, atol=4 / 7)
        np.testing.assert_array_equal(again[name], tensor, strict=True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "odd\nconv/bias\nconv/kernel",
            "the update's tensors are not in the order of their names.",
        ),
        ("odd\nodd", "the update's tensors are not in the order of their names."),
        ("", "the fleet knows no tensor ''."),
        ("odd\n", "the fleet knows no tensor ''."),
        ("conv/bias\nother", "the fleet knows no tensor 'other'."),
        ("**", "the fleet knows no tensor '**'."),
        ("x" * 10_000, f"the fleet knows no tensor '{'x' * 80}'."),
    ],
)
def test_names_of_codes_that_cannot_be(name: str, sentence: str) -> None:
    assert refused_coded("int8", tensors={name: codes("int8")}) == (Reason.WRONG_NAME, sentence)


def test_codes_in_more_than_one_tensor() -> None:
    for other in ("odd", "conv/bias\nodd"):
        assert refused_coded("int4", tensors={"*": codes("int4"), other: codes("int4")}) == (
            Reason.WRONG_NAME,
            "int4 codes are in one tensor.",
        )
    assert refused_coded("int4", tensors={}) == (Reason.WRONG_NAME, "the update holds no tensor.")


@pytest.mark.parametrize("encoding", ["int8", "int4"])
def test_codes_with_the_fingerprint_of_another_slice(encoding: str) -> None:
    for other in (CODED[1:], (*CODED[:2], shared_tensor("odd", 5, 13, role="Mul"))):
        assert refused_coded(encoding, fingerprint=Slice.of(other).fingerprint) == (
            Reason.WRONG_FINGERPRINT,
            "the update's fingerprint is not that of its tensors in this fleet.",
        )


def test_codes_that_quantising_never_makes() -> None:
    sizes = {name: int(np.prod(SHAPES[name])) for name in SCALES}
    place = FIRST_CODE
    for name, size in sizes.items():
        packed = codes("int8")
        packed[place + size - 1] = 0x80
        assert refused_coded("int8", tensors={"*": packed}) == (
            Reason.BAD_CODE,
            f"tensor {name!r} holds a code that int8 lacks.",
        )
        place += size
    place = FIRST_CODE
    for name, size in sizes.items():  # every number of codes is odd: the last half is unused
        end = place + (size + 1) // 2
        for where, byte in ((place, 0x08), (place, 0x80), (end - 1, 0x10)):
            packed = codes("int4")
            packed[where] = byte
            assert refused_coded("int4", tensors={"*": packed}) == (
                Reason.BAD_CODE,
                f"tensor {name!r} holds a code that int4 lacks.",
            )
        place = end


def test_codes_and_scales_that_are_too_much_together() -> None:
    packed = codes("int8")
    packed[SCALES["conv/kernel"] :][:6].view("<u2")[:] = 0x51BA  # about 1e11
    packed[FIRST_CODE:] = 127
    reason, text = refused_coded("int8", tensors={"*": packed})
    assert reason is Reason.NOT_FINITE and "'conv/kernel'" in text
    half = coded("float16").tensors
    infinite = half | {"conv/bias": np.array([0, np.inf, 0], np.float16)}
    assert refused_coded("float16", tensors=infinite)[0] is Reason.NOT_FINITE


@pytest.mark.parametrize("name", ["*", "odd\n", "a\nb"])
def test_no_tensor_is_called_like_codes_of_several(name: str) -> None:
    with pytest.raises(SliceError, match=r"^no shared tensor can be called "):
        Contract.of(Slice.of([shared_tensor(name, 1)]), exchange="delta", run=RUN)


# --- births ------------------------------------------------------------------------------


def birth(*shared: SharedTensor, device: str = "pi-1") -> bytes:
    return to_bytes(DeviceState.birth(device, Slice.of(shared), {"profile": "weak"}))


@pytest.mark.parametrize("shared", [STEM, HEAD, STEM + HEAD, STEM[1:]], ids=len)
def test_a_device_joins_with_any_subset(shared: tuple[SharedTensor, ...]) -> None:
    state = CONTRACT.check_birth(birth(*shared), "pi-1")
    assert (state.device, state.online, state.about) == ("pi-1", True, {"profile": "weak"})
    assert state.fingerprint == Slice.of(shared).fingerprint


@pytest.mark.parametrize(
    ("odd", "difference"),
    [
        (
            shared_tensor("stem/bias", 3, role="Mul"),
            "tensor 'stem/bias' has another role on the device than in the fleet.",
        ),
        (
            shared_tensor("stem/bias", 4),
            "tensor 'stem/bias' has shape (4,) on the device and (3,) in the fleet.",
        ),
        (
            SharedTensor.of("stem/bias", (3,), "float16", '{"op":"Conv"}'),
            "tensor 'stem/bias' has dtype float16 on the device and float32 in the fleet.",
        ),
        (
            shared_tensor("tail/bias", 3),
            "the device shares tensor 'tail/bias', which the fleet does not know.",
        ),
    ],
)
def test_one_tensor_that_differs_is_named(odd: SharedTensor, difference: str) -> None:
    payload = birth(STEM[0], odd, HEAD[0])
    assert refused(CONTRACT.check_birth, payload) == (Reason.WRONG_FINGERPRINT, difference)


def test_the_first_of_two_differences_is_named() -> None:
    """In the order in which data meet the fleet's tensors, whatever JSON made of a birth."""
    odd = [shared_tensor(name, 9) for name in ("stem/kernel", "stem/bias")]
    _, text = refused(CONTRACT.check_birth, birth(*odd))
    assert text.startswith("tensor 'stem/kernel' has shape (9,) on the device and ")


def test_a_death_is_taken_whatever_the_device_shared() -> None:
    gone = DeviceState(device="pi-1", online=False)
    assert CONTRACT.check_birth(to_bytes(gone), "pi-1") == gone
    stranger = Slice.of([shared_tensor("tail/kernel", 9)])
    elsewhere = replace(DeviceState.birth("pi-1", stranger, {}), online=False)
    assert not CONTRACT.check_birth(to_bytes(elsewhere), "pi-1").online


def test_a_birth_of_another_device() -> None:
    for payload in (birth(*STEM), to_bytes(DeviceState(device="pi-1", online=False))):
        assert refused(CONTRACT.check_birth, payload, "pi-2") == (
            Reason.FOREIGN,
            "the message names another device than its topic.",
        )
    assert refused(CONTRACT.check_birth, birth(*STEM, device="pi 1"), "pi 1")[0] is Reason.FOREIGN


def test_births_that_are_none() -> None:
    check = CONTRACT.check_birth
    assert refused(check, to_bytes(GOOD)[:100])[0] is Reason.MALFORMED
    assert refused(check, bytes(SMALL + 1)) == (
        Reason.OVERSIZED,
        f"the message has {SMALL + 1} bytes; at most {SMALL} are taken.",
    )
    described = {"stem/bias": {"shape": "3", "dtype": "float32", "fingerprint": "0"}}
    nobody = DeviceState(device="pi-1", online=True, tensors_shared=described)
    assert refused(check, to_bytes(nobody)) == (
        Reason.MALFORMED,
        "tensor 'stem/bias' of a birth is not described.",
    )


def test_a_long_birth_is_refused_in_a_short_sentence() -> None:
    """`refused` checks the length."""
    for name, shape in (("x" * 50_000, (3,)), ("stem/bias", (1,) * 1000), ("x" * 250, (3,))):
        tensor = SharedTensor(name, shape, "float32", "0" * 64)
        refused(CONTRACT.check_birth, birth(tensor))
