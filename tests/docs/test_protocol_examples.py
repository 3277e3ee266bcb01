"""The worked examples of docs/protocol.md are what the code computes, byte for byte."""

from __future__ import annotations

import contextlib
import io
import json
import re
import struct
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from broker.aggregator import __main__ as aggregator
from broker.aggregator import publisher, service
from broker.aggregator.options import arguments as aggregator_arguments
from broker.aggregator.slice_file import read_slice
from broker.merging.presence import MAX_DEVICES
from broker.protocol import parts, wire
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
from broker.protocol.slice import Slice
from broker.transport import channel, mqtt, mqtt_link, mqtt_rules
from firmware_sim.device import agent, fleet_view, ignored
from firmware_sim.device import assembly as device
from firmware_sim.device.options import arguments as device_arguments
from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "docs" / "protocol.md")
BLOCKS = [block for block in PAGE.blocks() if block.language in ("python", "text")]
RUN = "c0ffee00c0ffee00"
LEARNT = {
    "head/kernel": np.array([[0.5, -0.5], [0, 1]], np.float32),
    "head/bias": np.array([0.25, -0.25], np.float32),
}


@pytest.fixture(scope="module")
def head() -> Slice:
    """y = x · head/kernel + head/bias, read from an ONNX file as the aggregator does."""
    weights = [numpy_helper.from_array(0 * value, name) for name, value in LEARNT.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "head/kernel"], ["a"], "head/MatMul"),
        helper.make_node("Add", ["a", "head/bias"], ["y"], "head/Add"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "y")
    )
    graph = helper.make_graph(nodes, "slice", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(model)
    found, _ = read_slice(model.SerializeToString())
    return found


def test_fingerprints_are_computed_as_the_page_says(head: Slice) -> None:
    program, printed = BLOCKS[:2]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(program.text, {})
    assert said.getvalue() == printed.text
    expected = [f"{tensor.name} {tensor.fingerprint}" for tensor in head.tensors]
    assert printed.text.splitlines() == [*expected, f"slice {head.fingerprint}"]


def messages(head: Slice) -> list[tuple[str, Message]]:
    """The round of the page, in its order."""
    gone = DeviceState(device="pi", online=False)
    state = AggregatorState(
        status="online",
        run=RUN,
        mode="sync",
        exchange="delta",
        merge="samples",
        fingerprint=head.fingerprint,
        epoch=1,
        instance="a1",
    )
    start = {name: 0 * value for name, value in LEARNT.items()}
    shared = Shared(run=RUN, round=0, fingerprint=head.fingerprint, tensors=start)
    accepted = Verdict(device="pi", about="update", run=RUN, accepted=True, round=0, nonce="9f3a61")
    return [
        ("device/pi/state", gone),
        ("aggregator/state", state),
        ("device/pi/state", DeviceState.birth("pi", head, {}, instance="d1")),
        ("device/pi/verdict", replace(accepted, about="join", nonce=head.fingerprint)),
        ("shared", shared),
        ("device/pi/update", update(head)),
        ("device/pi/verdict", accepted),
        ("aggregator/state", replace(state, status="finished", round=1)),
        ("shared", replace(shared, round=1, last=True, tensors=LEARNT)),
        ("device/pi/state", gone),
    ]


def update(head: Slice) -> Update:
    return Update(
        device="pi",
        run=RUN,
        round=0,
        nonce="9f3a61",
        samples=120,
        exchange="delta",
        fingerprint=head.fingerprint,
        tensors=LEARNT,
    )


def test_the_round_of_the_page_is_what_is_sent(head: Slice) -> None:
    lines = []
    for topic, message in messages(head):
        payload = to_bytes(message)
        (length,) = struct.unpack_from("<Q", payload)
        meta = json.loads(payload[8 : 8 + length])["__metadata__"]["stemshare"]
        lines.append(f"{topic} {len(payload)} {meta}")
    assert BLOCKS[2].text.splitlines() == lines


def test_the_bytes_of_the_page_are_the_update(head: Slice) -> None:
    payload = bytes.fromhex(BLOCKS[3].text)
    assert payload == to_bytes(update(head))
    read = from_bytes(Update, payload)
    assert read.fingerprint == head.fingerprint
    for name, value in LEARNT.items():
        np.testing.assert_array_equal(read.tensors[name], value)


def test_the_intervals_and_limits_of_the_page_are_those_of_the_code() -> None:
    options = {
        action.dest: action.default
        for parser in (aggregator_arguments(), device_arguments())
        for action in parser._actions
    }
    expected = {
        "aggregator's state": f"{service.STATE_SECONDS:g} s",
        "rounds between states": str(publisher.STATE_ROUNDS),
        "epoch of a state": f"{fleet_view._FENCE_SECONDS:g} s",
        "ignored messages": f"{ignored.LOG_SECONDS:g} s",
        "a refusal": f"{agent._ASK_SECONDS:g} s",
        "aggregator's counters": f"{service.METRICS_SECONDS:g} s",
        "report": f"{service.REPORT_SECONDS:g} s",
        "round": f"{options['deadline']:g} s",
        "after the last round": f"{aggregator.LINGER_SECONDS:g} s",
        "θ_shared missing": f"{agent._ASK_SECONDS:g} s",
        "resend": f"{options['resend_seconds']:g} s",
        "keepalive": f"{mqtt_link.KEEPALIVE_S} s",
        "session": f"{mqtt_link.SESSION_S} s",
        "reconnecting": f"{mqtt.FIRST_DELAY_S} s",
        "window": f"{mqtt_link.WINDOW} packets",
        "message without tensors": f"{SMALL // 2**20} MiB",
        "update": f"{wire.HEADER_LIMIT // 2**20} MiB + 4 bytes",
        "θ_shared": f"{device.LARGEST_MESSAGE // 2**20} MiB",
        "part": f"{channel.PART_BYTES} bytes",
        "smallest part": f"{parts.SMALLEST} bytes",
        "JSON": f"{wire._DEPTH} levels",
        "tensor": "8 axes",
        "devices": str(MAX_DEVICES),
    }
    text = PAGE.path.read_text(encoding="utf-8").partition("## Intervals and limits\n")[2]
    table = text.partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+) \|$", table, flags=re.MULTILINE)[1:]
    assert {what: value for what, value, _ in rows} == expected
    meaning = {what: text for what, _, text in rows}
    assert f"up to {mqtt.LONGEST_DELAY_S:g} s" in meaning["reconnecting"]
    assert f"a link of {mqtt.STABLE_S:g} s" in meaning["reconnecting"]
    assert f"less {mqtt_rules.PACKET_ROOM} bytes" in meaning["part"]
    assert f"of which {parts.ROOM} are" in meaning["smallest part"]
