"""A slice that is larger than the broker's packets.

θ_shared has 1,687,206 parameters, 6.7 MB, and mosquitto takes no packet above 1 MB. An aggregator
and two devices (real agents whose learners are scripted) finish three rounds with parts of a
size that they were told to use, or of the size that the broker allows if that is smaller. No
packet is lost or too large, the result is what plain numpy gives, and whoever comes when
everything is over gets the retained parts of the last θ_shared.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from broker.aggregator.slice_file import read_slice
from broker.brokers.mosquitto_process import Mosquitto
from broker.protocol.messages import Shared, Update, from_bytes
from broker.protocol.slice import Tensors
from broker.protocol.topics import Topics
from broker.transport.address import Address
from broker.transport.channel import Channel, Message
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import packet_bytes
from tests.harness.programs import Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.watcher import Watcher

LARGEST_PACKET = 1_000_000  # bytes
ROUNDS = 3
PATIENCE = 15.0  # seconds
WIDTHS = (968, 1024, 678)
PARAMETERS = 1_687_206


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """With a limit, which it tells to clients that speak MQTT 5."""
    with Mosquitto(tmp_path / "mosquitto", max_packet_bytes=LARGEST_PACKET) as running:
        yield running


@pytest.fixture
def slice_path(tmp_path: Path) -> Path:
    """Two dense layers."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for layer, (rows, columns) in enumerate(pairwise(WIDTHS), 1):
        kernel, bias, where = f"dense{layer}/kernel", f"dense{layer}/bias", f"shared/{layer}"
        for name, shape in ((kernel, (rows, columns)), (bias, (columns,))):
            start = rng.standard_normal(shape, np.float32)
            weights.append(numpy_helper.from_array(start, name))
        nodes.append(helper.make_node("MatMul", [value, kernel], [f"m{layer}"], f"{where}/MatMul"))
        nodes.append(helper.make_node("Add", [f"m{layer}", bias], [f"y{layer}"], f"{where}/Add"))
        value = f"y{layer}"
    graph = helper.make_graph(
        nodes,
        "slice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTHS[0]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", WIDTHS[-1]])],
        weights,
    )
    path = tmp_path / "shared.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def merged(start: Tensors, rounds: list[list[Update]]) -> dict[str, npt.NDArray[np.float64]]:
    """θ ← θ + Σ_k n_k Δ_k / Σ_k n_k, once for each round."""
    theta = {name: value.astype(np.float64) for name, value in start.items()}
    for updates in rounds:
        total = sum(update.samples for update in updates)
        for update in updates:
            for name, delta in update.tensors.items():
                theta[name] += update.samples / total * delta
    return theta


def assert_equal(found: Tensors, expected: dict[str, npt.NDArray[np.float64]]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6)


def retained(broker: Address, topics: Topics) -> Shared:
    """θ_shared as somebody gets it who comes when all is over."""
    wanted = (topics.shared, f"{topics.shared}/+")
    transport = MqttTransport(broker, client_id="late", subscriptions=wanted)
    with contextlib.closing(Channel(transport, limit=2**25, held_limit=2**26)) as channel:
        while not isinstance(event := channel.receive(PATIENCE), Message):
            assert event is not None, "nothing is retained"
        return from_bytes(Shared, event.payload, limit=2**25)


@pytest.mark.parametrize(
    ("asked", "largest"),
    [(131_072, 131_072), (900_000, 900_000), (5_000_000, LARGEST_PACKET)],
    ids=["128 KB", "default", "more than the broker takes"],
)
def test_parts_carry_what_no_packet_could(
    asked: int,
    largest: int,
    slice_path: Path,
    programs: Programs,
    scripted: Callable[..., ScriptedDevice],
    watcher: Watcher,
    topics: Topics,
) -> None:
    shared, start = read_slice(slice_path)
    assert sum(value.size for value in start.values()) == PARAMETERS
    options = ("--quorum", "2", "--rounds", str(ROUNDS), "--part-bytes", str(asked))
    aggregator = programs.aggregator("--slice", slice_path, *options)
    link = {"part_bytes": asked, "resend_seconds": 30.0}
    devices = [
        scripted("one", shared, samples=10, seed=1, **link),
        scripted("two", shared, samples=30, seed=2, **link),
    ]
    for device in devices:
        device.finish()
    assert aggregator.exit_code() == 0
    late = retained(programs.broker, topics)

    expected = merged(
        start, [list(pair) for pair in zip(*(d.updates for d in devices), strict=True)]
    )
    for device in devices:
        assert len(device.updates) == ROUNDS
        assert_equal(device.learner.theta, expected)
    assert (late.round, late.last) == (ROUNDS, True)
    assert_equal(late.tensors, expected)

    counted = aggregator.history("counters")[-1]
    assert (counted["packets_dropped"], counted["updates_accepted"]) == (0, 2 * ROUNDS)
    sizes = [packet_bytes(packet.topic, len(packet.payload)) for packet in watcher.packets]
    assert 0.95 * largest < max(sizes) <= largest + 200  # the packet's own header
    assert max(sizes) <= LARGEST_PACKET
    parts = {p.topic for p in watcher.packets if p.topic.startswith(f"{topics.shared}/")}
    assert len(parts) == -(-4 * PARAMETERS // largest)
    assert topics.shared not in {packet.topic for packet in watcher.packets}


def test_an_asynchronous_reply_comes_in_parts(
    slice_path: Path,
    programs: Programs,
    scripted: Callable[..., ScriptedDevice],
    watcher: Watcher,
    topics: Topics,
) -> None:
    shared, start = read_slice(slice_path)
    aggregator = programs.aggregator("--slice", slice_path, "--mode", "async", "--rounds", "2")
    device = scripted("one", shared, seed=1, resend_seconds=30.0)
    device.finish()
    assert aggregator.exit_code() == 0
    assert len(device.updates) == 2
    assert_equal(device.learner.theta, merged(start, [[update] for update in device.updates]))
    replied = Counter(p.topic for p in watcher.packets if p.topic.startswith(topics.reply("one")))
    # To its birth and to its two updates.
    assert replied == {f"{topics.reply('one')}/{index}": 3 for index in range(8)}
