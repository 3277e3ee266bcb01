"""The wire format: whatever it accepts is what the safetensors library reads, and no more."""

import json
import math
import sys
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from broker.errors import Oversized, WireError
from broker.protocol.wire import HEADER_LIMIT, below, decode, encode, serialised

LIMIT = 2 * HEADER_LIMIT
KIND = {"stemshare": '{"kind":"k"}'}
DTYPES = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "I8": "|i1", "I32": "<i4", "I64": "<i8", "U8": "|u1",
}  # fmt: skip
modest = settings(deadline=None, max_examples=150)


def packed(header: str | bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """A message made by hand."""
    if isinstance(header, Mapping):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return len(header).to_bytes(8, "little") + header + data


def place(dtype: Any = "F32", shape: Any = (), begin: Any = 0, end: Any = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def tensors_of(header: str | bytes | Mapping[str, Any], data: bytes = b"") -> Mapping[str, Any]:
    return decode(packed(header, data), limit=LIMIT).tensors


def refusal(payload: bytes) -> str:
    """Why the bytes are no message: one short sentence."""
    with pytest.raises(WireError) as caught:
        decode(payload, limit=LIMIT)
    text = str(caught.value)
    assert text.endswith(".") and len(text.splitlines()) == 1 and len(text) < 200, text
    return text


def little(array: npt.NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    """What an array is on the wire: type, shape, and values bit by bit in little endian."""
    dtype = array.dtype.newbyteorder("<")
    return dtype.str, array.shape, array.astype(dtype).tobytes()


def test_a_message_is_a_length_a_header_and_the_data() -> None:
    header = (
        '{"__metadata__":{"stemshare":"{\\"a\\":[1,null],\\"kind\\":\\"k\\"}"},'
        '"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    )
    header += " " * (-len(header) % 8)
    written = packed(header, b"\x00\x00\x80\x3f\x00\x00\x00\xc0")
    assert encode("k", {"a": [1, None]}, {"x": np.array([1, -2], np.float32)}) == written
    read = decode(written, limit=len(written))
    assert (read.kind, read.fields) == ("k", {"a": [1, None]})
    assert little(read.tensors["x"]) == ("<f4", (2,), b"\x00\x00\x80\x3f\x00\x00\x00\xc0")


def test_bytes_depend_on_contents_alone() -> None:
    a, b = np.zeros(3, np.float32), np.ones((2, 2))
    assert encode("k", {"p": 1, "q": 2}, {"a": a, "b": b}) == encode(
        "k", {"q": 2, "p": 1}, {"b": b, "a": a}
    )


def test_what_json_cannot_say_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode("k", {"loss": math.nan})


# --- whatever is written is read ---------------------------------------------------------


def arrays() -> st.SearchStrategy[npt.NDArray[Any]]:
    """Scalars, empty ones, either byte order, any memory layout, any bits (NaN included)."""
    dtypes = st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<i4", ">i4", "<i8", ">i8", "|u1"])
    shapes = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    layouts = st.sampled_from(
        [
            lambda a: a,
            np.asfortranarray,
            np.transpose,
            lambda a: a[::-1] if a.ndim else a,
            lambda a: a[..., ::2] if a.ndim else a,
            lambda a: np.broadcast_to(a, (2, *a.shape)),
        ]
    )
    made = dtypes.flatmap(lambda dtype: st_numpy.arrays(dtype, shapes))
    return st.builds(lambda layout, array: layout(array), layouts, made)


def json_values() -> st.SearchStrategy[Any]:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**100), 2**100)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8)
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=8,
    )


names = st.text(max_size=12).filter(lambda name: name != "__metadata__")
field_names = st.text(max_size=8).filter(lambda name: name != "kind")


@modest
@given(st.text(max_size=8), st.dictionaries(field_names, json_values(), max_size=4))
def test_any_metadata_come_back(kind: str, said: dict[str, Any]) -> None:
    read = decode(encode(kind, said), limit=LIMIT)
    # As text, because to Python 1, 1.0 and True are equal, and 0.0 and -0.0.
    assert json.dumps([read.kind, read.fields], sort_keys=True) == json.dumps(
        [kind, said], sort_keys=True
    )
    assert read.tensors == {}


@modest
@given(st.dictionaries(names, arrays(), max_size=4))
def test_any_tensors_come_back_and_the_library_reads_the_same(
    tensors: dict[str, npt.NDArray[Any]],
) -> None:
    payload = encode("k", {}, tensors)
    wanted = {name: little(array) for name, array in tensors.items()}
    read = decode(payload, limit=len(payload)).tensors
    assert {name: little(array) for name, array in read.items()} == wanted
    loaded = safetensors.numpy.load(payload)
    assert {name: little(array) for name, array in loaded.items()} == wanted


@pytest.mark.parametrize("dtype", ["?", "i2", "u2", "u4", "u8", "c8"])
def test_a_dtype_that_nobody_sends_is_refused(dtype: str) -> None:
    payload = safetensors.numpy.save({"x": np.zeros(2, dtype)}, metadata=KIND)
    assert refusal(payload) == "tensor 'x' is not described as a tensor."
    with pytest.raises(ValueError, match=r"^tensor 'x' cannot be sent as "):
        encode("k", {}, {"x": np.zeros(2, dtype)})


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=6),
        st.sampled_from(list(DTYPES.values())).flatmap(
            lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, min_side=0))
        ),
        max_size=8,
    )
)
def test_the_bytes_are_those_of_the_library(tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Order of the tensors, escapes in names, padding: messages stay what they were."""
    assert encode("k", {}, tensors) == safetensors.numpy.save(tensors, metadata=KIND)


def test_the_memory_of_dense_arrays_is_not_copied() -> None:
    array = np.arange(6, dtype=np.float32)
    _, data = serialised("k", {}, {"x": array})
    array[0] = 7
    assert np.frombuffer(data, np.float32)[0] == 7


# --- whatever is accepted, the library accepts with the same tensors ---------------------


def same_as_the_library(payload: bytes) -> bool:
    """Whether we accept it; if so, the library must read the same."""
    try:
        ours = decode(payload, limit=LIMIT)
    except WireError:
        return False
    theirs = dict(safetensors.deserialize(payload))  # type: ignore[no-untyped-call]
    assert {name: little(array) for name, array in ours.tensors.items()} == {
        name: (DTYPES[said["dtype"]], tuple(said["shape"]), bytes(said["data"]))
        for name, said in theirs.items()
    }
    return True


@st.composite
def headers(draw: st.DrawFn) -> tuple[str, bytes, bool]:
    """Tensors one after the other, perhaps one number wrong; and whether all is certainly right."""
    header: dict[str, Any] = {"__metadata__": KIND}
    position, right = 0, True
    for name in draw(st.lists(names, unique=True, max_size=4)):
        dtype = draw(st.sampled_from([*DTYPES, *DTYPES, "F16", "f32"]))
        shape = draw(st.lists(st.integers(0, 3), max_size=4))
        size = math.prod(shape) * np.dtype(DTYPES.get(dtype, "u1")).itemsize
        header[name] = place(dtype, shape, position, position + size)
        position += size
        right = right and dtype in DTYPES
    if len(header) > 1 and draw(st.booleans()):
        odd = st.sampled_from([-1, 0, 1, 2, 4, 8, 2**31, 2**40, 2**63, 2**64, 0.0, True, None])
        entry = header[draw(st.sampled_from([*header][1:]))]
        key = draw(st.sampled_from(["shape", "data_offsets"]))
        numbers = [*entry[key], 0]
        numbers[draw(st.integers(0, len(numbers) - 1))] = draw(odd)
        entry[key] = numbers if draw(st.booleans()) else numbers[:-1]
        right = False
    items = draw(st.permutations(list(header.items())))
    data = draw(st.binary(min_size=position, max_size=position))
    return json.dumps(dict(items), ensure_ascii=draw(st.booleans())), data, right


@settings(deadline=None, max_examples=300)
@given(headers())
def test_what_is_accepted_the_library_reads_alike(made: tuple[str, bytes, bool]) -> None:
    header, data, right = made
    assert same_as_the_library(packed(header, data)) or not right


@modest
@given(headers(), st.data())
def test_what_is_accepted_after_an_edit_the_library_reads_alike(
    made: tuple[str, bytes, bool], drawn: st.DataObject
) -> None:
    """A piece of JSON in any place: most are refused, and none is read differently."""
    header, data, _ = made
    pieces = ["-0", "1e0", "0.0", "1e999", "NaN", "null", "\\ud800", "\\u0041", " ", "\t", '"', ","]
    at = drawn.draw(st.integers(0, len(header)))
    cut = drawn.draw(st.integers(0, 2))
    edited = header[:at] + drawn.draw(st.sampled_from(pieces)) + header[at + cut :]
    same_as_the_library(packed(edited, data))


@pytest.mark.parametrize(
    ("header", "data_bytes"),
    [
        (" \n" + json.dumps({"__metadata__": KIND}) + "\t\r ", 0),
        ('{"\\u005f_metadata__":{"stemshare":"{\\"kind\\":\\"\\ud83d\\ude00\\"}"}}', 0),
        ({"__metadata__": KIND, "": place(), "é\0": place("U8", [0, 2**40], 4, 4)}, 4),
        ({"b": place("U8", [1], 3, 4), "__metadata__": KIND, "a": place("U8", [3], 0, 3)}, 4),
        ({"__metadata__": KIND, "x": place("F32", [0, 2**47, 2**14 - 1], 0, 0)}, 0),
        ({"__metadata__": KIND, "x": place("F32", [1] * 8)}, 4),
    ],
)
def test_unusual_but_right_headers_are_read(header: str | dict[str, Any], data_bytes: int) -> None:
    assert same_as_the_library(packed(header, bytes(data_bytes)))


# --- headers made by hand ----------------------------------------------------------------

NOT_THERE = "tensor 'x' is not where its shape and neighbours put it."
NO_TENSOR = "tensor 'x' is not described as a tensor."
NO_JSON = "the message's header is not valid JSON."


@pytest.mark.parametrize(
    ("tensors", "data_bytes", "sentence"),
    [
        ({"a": place(), "x": place("F32", [], 2, 6)}, 6, NOT_THERE),  # overlap
        ({"a": place(), "x": place()}, 4, NOT_THERE),  # the same place twice
        ({"x": place("F32", [], 4, 8)}, 8, NOT_THERE),  # a hole in front
        ({"a": place(), "x": place("F32", [], 8, 12)}, 12, NOT_THERE),  # a hole between
        ({"x": place()}, 8, "the message has 8 bytes of data, not 4."),  # a hole behind
        ({"x": place()}, 3, "the message has 3 bytes of data, not 4."),
        ({"x": place("F32", [2])}, 4, NOT_THERE),
        ({"x": place("F64")}, 4, NOT_THERE),
        ({"x": place("F32", [2], 4, 0)}, 4, NOT_THERE),  # backwards
        ({"x": place("F32", [0], 4, 4)}, 4, NOT_THERE),
        (
            {"x": place("U8", [2**40], 0, 2**40)},
            4,
            f"the message has 4 bytes of data, not {2**40}.",
        ),
        ({"x": place("U8", [2**40] * 8, 0, 4)}, 4, NO_TENSOR),
        ({"x": place("U8", [2**24, 2**24], 0, 4)}, 4, NOT_THERE),
        ({"x": place("U8", [2**48], 0, 0)}, 0, NO_TENSOR),
        ({"x": place("U8", [10**4000], 0, 0)}, 0, NO_TENSOR),
        ({"x": place("F32", [0, 2**47, 2**47], 0, 0)}, 0, NO_TENSOR),
        ({"x": place("F32", [2**47, 2**47, 0], 0, 0)}, 0, NO_TENSOR),
        ({"x": place("F64", [0, sys.maxsize // 2**16, 2**14], 0, 0)}, 0, NO_TENSOR),
        ({"x": place("F32", [1] * 9)}, 4, NO_TENSOR),
        ({"x": place("F32", [-1])}, 4, NO_TENSOR),
        ({"x": place("F32", [-1, -1])}, 4, NO_TENSOR),
        ({"x": place("F32", [True])}, 4, NO_TENSOR),
        ({"x": place("F32", [1.0])}, 4, NO_TENSOR),
        ({"x": place("F32", ["1"])}, 4, NO_TENSOR),
        ({"x": place("F32", [[1]])}, 4, NO_TENSOR),
        ({"x": place("F32", 1)}, 4, NO_TENSOR),
        ({"x": place("F32", None)}, 4, NO_TENSOR),
        ({"x": place("F32", [], False)}, 4, NO_TENSOR),
        ({"x": place("F32", [], -4, 0)}, 4, NO_TENSOR),
        ({"x": place("F32", [], 0, 4.0)}, 4, NO_TENSOR),
        ({"x": place("f32")}, 4, NO_TENSOR),
        ({"x": place(None)}, 4, NO_TENSOR),
        ({"x": place(["F32"])}, 4, NO_TENSOR),
        ({"x": {**place(), "data_offsets": [0, 4, 4]}}, 4, NO_TENSOR),
        ({"x": {**place(), "data_offsets": [4]}}, 4, NO_TENSOR),
        ({"x": {**place(), "strides": [1]}}, 4, NO_TENSOR),
        ({"x": {"dtype": "F32", "shape": []}}, 4, NO_TENSOR),
        ({"x": None}, 4, NO_TENSOR),
        ({"x": []}, 4, NO_TENSOR),
        ({"x" * 10**5: None}, 4, f"tensor '{'x' * 80}' is not described as a tensor."),
        (
            {"x" * 10**5: place()},
            0,
            "the message has 0 bytes of data, not 4.",
        ),
        (
            {"x" * 10**5: place("F32", [2])},
            4,
            f"tensor '{'x' * 80}' is not where its shape and neighbours put it.",
        ),
    ],
)
def test_tensors_that_are_none(tensors: dict[str, Any], data_bytes: int, sentence: str) -> None:
    payload = packed({"__metadata__": KIND, **tensors}, bytes(data_bytes))
    assert refusal(payload) == sentence


def with_tensor(described: str) -> str:
    return f'{{"__metadata__":{json.dumps(KIND)},{described}}}'


FOUR = '"dtype":"F32","shape":[],"data_offsets":[0,4]'


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        "{",
        "nonsense",
        "\ufeff{}",
        "{}{}",
        with_tensor(f'"x":{{{FOUR}}},"x":{{{FOUR}}}'),
        with_tensor(f'"x":{{{FOUR},"shape":[]}}'),
        with_tensor(f'"x":{{{FOUR}}},"\\u0078":{{{FOUR}}}'),
        with_tensor(f'"__metadata__":{json.dumps(KIND)}'),
        with_tensor('"x":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}'),
        with_tensor('"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}'),
        with_tensor('"x":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}'),
        with_tensor('"x":{"dtype":"F32","shape":[],"data_offsets":[-Infinity,4]}'),
        with_tensor('"x":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}'),
        with_tensor('"x":{"dtype":"F32","shape":[' + "1" * 5000 + '],"data_offsets":[0,4]}'),
        with_tensor(f'"x\\ud800":{{{FOUR}}}'),
        with_tensor(f'"\\udc00\\ud800":{{{FOUR}}}'),
        with_tensor('"x":{"dtype":"\\ud800","shape":[],"data_offsets":[0,4]}'),
        '{"__metadata__":{"stemshare":"{\\"kind\\":\\"\\ud800\\"}"}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        b'{"a\xff":1}',
        b'{"\xed\xa0\x80":1}',  # a lone surrogate in UTF-8
        '{"a\n":1}',
    ],
    ids=lambda header: repr(header[:60]),
)
def test_headers_that_are_no_json(header: str | bytes) -> None:
    assert refusal(packed(header, bytes(4))) == NO_JSON


@pytest.mark.parametrize("header", ["[]", "null", "1", '"{}"', "true", "[" * 30 + "]" * 30])
def test_headers_that_are_no_object(header: str) -> None:
    assert refusal(packed(header)) == "the message's header is not a JSON object."


NO_METADATA = "the message has no metadata 'stemshare'."
NO_JSON_INSIDE = "the message's metadata is not valid JSON."
NO_KIND = "the message does not say its kind."


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        (None, NO_METADATA),
        ([], NO_METADATA),
        ("{}", NO_METADATA),
        ({}, NO_METADATA),
        ({"stemshare": None}, NO_METADATA),
        ({"stemshare": {"kind": "k"}}, NO_METADATA),
        ({"stemshare": 1}, NO_METADATA),
        ({**KIND, "more": "x"}, NO_METADATA),
        ({"Stemshare": "{}"}, NO_METADATA),
        ({"stemshare": ""}, NO_JSON_INSIDE),
        ({"stemshare": '{"kind":NaN}'}, NO_JSON_INSIDE),
        ({"stemshare": '{"kind":"k","a":1e999}'}, NO_JSON_INSIDE),
        ({"stemshare": '{"kind":"k","a":-1e999}'}, NO_JSON_INSIDE),
        ({"stemshare": '{"kind":"a","kind":"b"}'}, NO_JSON_INSIDE),
        ({"stemshare": '{"kind":"\\ud800"}'}, NO_JSON_INSIDE),
        ({"stemshare": '{"kind":"k","\\udfff":1}'}, NO_JSON_INSIDE),
        (
            {"stemshare": '{"kind":"k","a":["\\ud9ff"]}'},
            NO_JSON_INSIDE,
        ),
        ({"stemshare": '{"a":' * 50_000}, NO_JSON_INSIDE),
        ({"stemshare": "[]"}, "the message's metadata is not a JSON object."),
        ({"stemshare": "{}"}, NO_KIND),
        ({"stemshare": '{"kind":1}'}, NO_KIND),
        ({"stemshare": '{"kind":null}'}, NO_KIND),
    ],
)
def test_metadata_that_are_none(metadata: Any, sentence: str) -> None:
    assert refusal(packed({"__metadata__": metadata})) == sentence


def test_a_header_without_metadata_is_refused() -> None:
    assert refusal(packed({"x": place()}, bytes(4))) == NO_METADATA


@pytest.mark.parametrize("inner", ["[", '{"a":'])
def test_metadata_are_nested_at_most_32_levels_deep(inner: str) -> None:
    def nested(levels: int) -> bytes:
        close = "]" if inner == "[" else "}"
        deep = inner * levels + "0" + close * levels
        return packed({"__metadata__": {"stemshare": f'{{"kind":"k","deep":{deep}}}'}})

    assert decode(nested(31), limit=LIMIT).kind == "k"
    for levels in (32, 500, 900):
        assert refusal(nested(levels)) == "the message's metadata is nested too deeply."


@pytest.mark.parametrize("length", [11, 2**20 + 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_a_header_that_ends_beyond_the_message_is_refused(length: int) -> None:
    payload = length.to_bytes(8, "little") + b"{}        "
    assert refusal(payload) == "the message's header is too long, or cut off."


def test_a_header_has_at_most_a_mebibyte() -> None:
    header = json.dumps({"__metadata__": KIND})
    longest = header + " " * (HEADER_LIMIT - len(header))
    assert tensors_of(longest) == {}
    assert refusal(packed(longest + " ")) == "the message's header is too long, or cut off."


@pytest.mark.parametrize("length", range(8))
def test_less_than_a_length_is_refused(length: int) -> None:
    assert refusal(bytes(length)) == "the message is cut off before its header."


def test_the_limit_is_the_largest_message() -> None:
    payload = encode("k", {}, {"x": np.zeros(100)})
    assert decode(payload, limit=len(payload)).kind == "k"
    with pytest.raises(Oversized) as caught:
        decode(payload, limit=len(payload) - 1)
    size = len(payload)
    assert str(caught.value) == f"the message has {size} bytes; at most {size - 1} are taken."


@modest
@given(st.binary(max_size=64))
@example(b"\x02" + bytes(7) + b"{}")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for payload in (data, packed(data), packed(b'{"__metadata__":' + data)):
        same_as_the_library(payload)


# --- memory ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        {"__metadata__": KIND, "x": place("F64", [2**40], 0, 2**43)},
        {"__metadata__": KIND, "x": place("F64", [2**28], 0, 4)},
        {"__metadata__": KIND, "x": place("U8", [2**16, 2**16], 0, 2**32)},
        {"__metadata__": KIND, **{f"x{i}": place("F64", [2**30], 0, 2**33) for i in range(50)}},
        {"__metadata__": {"stemshare": "{" * 1000}},
    ],
)
def test_a_claim_costs_no_memory(header: dict[str, Any]) -> None:
    payload = packed(header, bytes(4))
    refusal(payload)  # whatever is imported or cached the first time
    assert peak_of_refusing(payload) < 20 * len(payload) + 20_000


def test_a_long_header_is_not_even_copied() -> None:
    payload = packed(b" " * (HEADER_LIMIT + 1))
    refusal(payload)
    assert peak_of_refusing(payload) < 20_000


def peak_of_refusing(payload: bytes) -> int:
    """Bytes allocated at once while the message was looked at."""
    tracemalloc.start()
    try:
        refusal(payload)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_tensors_are_read_only_views_of_the_received_bytes() -> None:
    sent = {"x": np.arange(6.0).reshape(2, 3), "y": np.ones(5, np.uint8), "z": np.array(1.0)}
    payload = encode("k", {}, sent)
    received = np.frombuffer(payload, np.uint8)
    for name, tensor in decode(payload, limit=LIMIT).tensors.items():
        assert np.shares_memory(tensor, received), name
        assert not tensor.flags.writeable and not tensor.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            tensor[...] = 0


def test_a_large_message_is_not_copied() -> None:
    payload = encode("k", {}, {"x": np.zeros(2**20)})
    decode(payload, limit=len(payload))
    tracemalloc.start()
    try:
        decode(payload, limit=len(payload))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(payload) // 100


def test_below_a_prefix() -> None:
    a, b = np.zeros(1), np.ones(1)
    tensors = {"shared/a": a, "slots/shared/a": b, "shared/": b}
    assert below("shared/", tensors) == {"a": a, "": b}
    assert below("none/", tensors) == {}
