"""Messages of sensors: JSON with paths, numbers as text, arrays of numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_sim.sources.decoding.message import BadMessage, Messages, look_up
from firmware_sim.sources.settings import MqttSettings


def reader(window: int = 2, channels: int = 3, **given: Any) -> Messages:
    return Messages(MqttSettings(**given), window=window, channels=channels)


def packed(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_fields_labels_and_key_of_json() -> None:
    messages = reader(fields=("accel.x", "accel.y", "more.1"), labels=("state.now",), key="id")
    document = {"accel": {"x": 1, "y": "2.5"}, "more": [0, None], "state": {"now": "run"}, "id": 7}
    read = messages.read(packed(document))
    np.testing.assert_array_equal(read.samples, [[1, 2.5, np.nan]])
    assert (read.labels, read.key) == (["run"], "7")
    again = messages.read(packed({"accel": {"x": 1}}))
    np.testing.assert_array_equal(again.samples, [[1, np.nan, np.nan]])
    assert (again.labels, again.key) == ([None], "")


@pytest.mark.parametrize("flat", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]])
def test_a_whole_window_in_one_field(flat: Any) -> None:
    messages = reader(fields=("samples",), whole_windows=True)
    read = messages.read(packed({"samples": flat, "label": 1}))
    assert read.samples.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert read.labels == [1]


def test_a_whole_window_with_a_list_for_each_channel() -> None:
    messages = reader(channels=2, fields=("x", "y"), whole_windows=True)
    assert messages.read(packed({"x": [1, 2], "y": [3, 4]})).samples.tolist() == [[1, 3], [2, 4]]


def test_bare_numbers() -> None:
    assert reader(channels=1).read(b"2.5").samples.tolist() == [[2.5]]
    assert reader().read(b"[1, 2, 3]").samples.tolist() == [[1, 2, 3]]
    assert reader(payload="text").read(b" 1, 2;3\n").samples.tolist() == [[1, 2, 3]]


@settings(max_examples=20)
@given(st.sampled_from(("float32", "int16", "int32", "uint8")), st.integers(0, 99))
def test_arrays_are_little_endian(kind: Any, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 200, (2, 3))
    messages = reader(payload=kind, whole_windows=True)
    payload = values.astype(np.dtype(kind).newbyteorder("<")).tobytes()
    np.testing.assert_array_equal(messages.read(payload).samples, values)
    with pytest.raises(BadMessage):
        messages.read(payload + b"\0")


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 9_000, "not JSON"),
        (b'{"a": 1}', "name the fields"),
        (b"[1, 2]", "2 numbers instead of 3"),
        (b"[1, 2, true]", "True in a message is not a number"),
        (b'[1, 2, "warm"]', "'warm' in a message is not a number"),
        (b"[1, 2, 1e999]", "not finite"),
        (b"[1, 2, 1" + b"0" * 400 + b"]", "is not a number"),
        (b"[" + b" " * 20_000 + b"1,2,3]", "a message has 20007 bytes; at most 16576 are read"),
    ],
)
def test_what_is_no_sample(payload: bytes, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        reader().read(payload)


def test_labels_that_come_later() -> None:
    messages = reader(key="id", label_fields=("verdict.class",))
    assert messages.read_label(packed({"id": 3, "verdict": {"class": 1}})) == ("3", [1])
    with pytest.raises(BadMessage, match="does not say whose it is"):
        messages.read_label(packed({"verdict": {"class": 1}}))
    with pytest.raises(BadMessage, match="more than 200"):
        messages.read_label(packed({"id": "x" * 201}))


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None)
@given(trees, st.text(max_size=8))
def test_any_document_is_read_or_refused(document: Any, path: str) -> None:
    look_up(document, path)
    for messages in (reader(), reader(fields=(path or "a", "b"), key="k")):
        try:
            samples = messages.read(packed(document)).samples
        except BadMessage as error:
            assert len(str(error)) < 300
        else:
            assert samples.shape[0] == 1
