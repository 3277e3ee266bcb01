"""What the scenarios share: a broker, bundles, programs whose log can be read, and a listener.

`scripted` devices are real agents over MQTT, in threads of the test; only their learner is not
real: it draws every update from a seed, so that a round takes milliseconds.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from broker.aggregator.slice_file import read_slice
from broker.brokers.mosquitto_process import Mosquitto
from broker.log import Log
from broker.protocol.messages import DeviceState, Update, Verdict, from_bytes, to_bytes
from broker.protocol.quantisation import PACKED, decode_tensors
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import ROOT, Topics
from broker.transport.address import Address
from broker.transport.channel import Channel
from broker.transport.mqtt import MqttTransport
from broker.transport.mqtt_rules import matches
from broker.transport.transport import Connected, Packet, Will
from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.device.agent import Agent
from firmware_sim.errors import Stopped
from firmware_sim.training.checkpoint import Checkpoint, Checkpoints
from firmware_sim.training.rounds import Plan, Rounds
from toolkit.fleet.processes import Child, stopping

PATIENCE = 60.0  # seconds until a test gives up; nothing takes that long
LARGEST = 2**28  # bytes of a message
TOPICS = Topics("orchard")
T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """The first true answer of `condition`; the test fails if there is none in time."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:g} s in vain: {what}")
        time.sleep(0.005)
    return answer


@pytest.fixture
def topics() -> Topics:
    """Of the fleet that all programs of a test belong to."""
    return TOPICS


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker of this test's own, open to everybody, without persistence."""
    with Mosquitto(tmp_path / "mosquitto") as running:
        yield running


@pytest.fixture(scope="session")
def provisioned_mosquitto() -> Callable[[Path], Mosquitto]:
    """The real broker with a provisioned folder's settings, but on loopback alone."""

    def make(folder: Path) -> Mosquitto:
        text = (folder / "mosquitto.conf").read_text(encoding="utf-8")
        text = re.sub(r"^listener .*", "", text, flags=re.MULTILINE)
        paths = r"^(password_file|acl_file|persistence_location|cafile|certfile|keyfile) "
        text = re.sub(paths, rf"\g<0>{folder}/", text, flags=re.MULTILINE)
        return Mosquitto(folder / "loopback", extra=text)

    return make


# --- programs -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """digits for both profiles, cascading, as the command exports them. To be read only.

    Whichever process of a test run comes first exports them for all.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits"
    folder.mkdir(exist_ok=True)
    profiles = ("weak", "powerful")
    with (folder / "lock").open("w") as lock, ThreadPoolExecutor() as both:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [folder / profile for profile in profiles if not (folder / profile).exists()]
        list(both.map(export_digits, missing))
    return {profile: open_bundle(folder / profile) for profile in profiles}


def export_digits(target: Path) -> None:
    command = [Path(sys.executable).with_name("toolkit"), "export", "--profile", target.name]
    options = ["--task", "digits", "--topology", "cascading", "--out", target]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


class Program(Child):
    """A child that can be signalled, and asked for all that it has logged."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path) -> None:
        super().__init__(name, module, arguments, log)
        self.log = log
        self._history: list[dict[str, Any]] = []

    def history(self, event: str = "") -> list[dict[str, Any]]:
        """Its events so far, all or of one name."""
        self._history += self.events()
        return [e for e in self._history if event in ("", e["event"])]

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first such event with these fields."""

        def find() -> dict[str, Any] | None:
            return next((e for e in self.history(event) if fields.items() <= e.items()), None)

        try:
            wait_until(lambda: find() or not self.running, f"{event} {fields} of {self.name}")
            return find() or pytest.fail(f"{self.name} has ended without {event} {fields}")
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}; it said: {self.log.read_text()[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Waits until it has ended by itself."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} does not end; it said: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Ends it without a chance to say or write anything."""
        self.send(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        if self.running:
            self.send(signal.SIGCONT)  # a test may have left it hanging
        super().stop()


@dataclass
class Programs:
    """Starts the programs of a fleet; the same call again is the same command again."""

    folder: Path
    broker: Address
    children: list[Child] = field(default_factory=list)

    def aggregator(self, *arguments: str | Path) -> Program:
        return self.start("aggregator", "broker.aggregator", arguments)

    def device(self, name: str, bundle: Bundle, *arguments: str | Path) -> Program:
        own = ("--id", name, "--bundle", bundle.folder, "--task", "digits")
        return self.start(name, "firmware_sim.device", (*own, *arguments))

    def start(self, name: str, module: str, arguments: Iterable[str | Path]) -> Program:
        link = ("--fleet", TOPICS.fleet, "--broker", str(self.broker))
        state = ("--state", self.folder / name)
        log = self.folder / f"{name}-{len(self.children)}.jsonl"
        command = [str(part) for part in (*link, *state, *arguments)]
        child = Program(name, module, command, log)
        self.children.append(child)
        return child


@pytest.fixture
def programs(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path, mosquitto.address)
    with stopping(started.children):
        yield started


def plain(update: Update, births: Iterable[DeviceState]) -> Update:
    """With float32 tensors: codes times scales, or numbers as they came."""
    if update.encoding not in PACKED:
        return update
    born = next(b for b in births if b.fingerprint == update.fingerprint)
    shapes = {tensor.name: tensor.shape for tensor in born.slice().tensors}
    return replace(update, tensors=decode_tensors(update.tensors, update.encoding, shapes))


# --- a listener -----------------------------------------------------------------------------------


class Watcher:
    """Records every packet of every fleet, in the broker's order."""

    def __init__(self, broker: Address) -> None:
        self.packets: list[Packet] = []
        self._changed = threading.Condition()
        self._connected = False
        self._transport = MqttTransport(
            broker, client_id=f"watcher-{secrets.token_hex(4)}", subscriptions=[f"{ROOT}/#"]
        )
        self._closing = False
        self._thread = threading.Thread(target=self._record)
        self._thread.start()
        self._wait(lambda: self._connected, "the watcher's connection")

    def heard(self, kind: Any, topic_filter: str) -> list[Any]:
        """All messages of a kind so far, on topics that match."""
        return [
            from_bytes(kind, packet.payload, limit=LARGEST)
            for packet in list(self.packets)
            if matches(topic_filter, packet.topic)
        ]

    def accepted(self) -> list[Update]:
        """Updates with a verdict that accepts them, in the order of these; each once."""
        sent = {update.nonce: update for update in self.heard(Update, TOPICS.update("+"))}
        verdicts = self.heard(Verdict, TOPICS.verdict("+"))
        nonces = [v.nonce for v in verdicts if v.accepted and v.about == "update"]
        births = self.heard(DeviceState, TOPICS.state("+"))
        return [plain(sent[nonce], births) for nonce in dict.fromkeys(nonces)]

    def wait_for(
        self,
        kind: Any,
        topic_filter: str,
        wanted: Callable[[Any], bool] = lambda _: True,
        *,
        since: int = 0,
    ) -> Any:
        """The first such message among the packets from number `since` on."""
        looked_at = since

        def find() -> Any:
            nonlocal looked_at
            while looked_at < len(self.packets):
                packet = self.packets[looked_at]
                looked_at += 1
                if matches(topic_filter, packet.topic):
                    message = from_bytes(kind, packet.payload, limit=LARGEST)
                    if wanted(message):
                        return message
            return None

        return self._wait(find, f"a {kind.KIND} on {topic_filter}")

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._transport.close()

    def _wait(self, condition: Callable[[], T], what: str) -> T:
        with self._changed:
            answer = self._changed.wait_for(condition, PATIENCE)
        return answer or pytest.fail(f"waited {PATIENCE:g} s in vain: {what}")

    def _record(self) -> None:
        while not self._closing:
            event = self._transport.receive(0.1)
            with self._changed:
                if isinstance(event, Packet):
                    self.packets.append(event)
                elif isinstance(event, Connected):
                    self._connected = True
                self._changed.notify_all()


@pytest.fixture
def watch(mosquitto: Mosquitto) -> Iterator[Callable[[], Watcher]]:
    """Starts listeners; a new one also hears what is retained."""
    watchers: list[Watcher] = []

    def start() -> Watcher:
        watchers.append(Watcher(mosquitto.address))
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.close()


@pytest.fixture
def watcher(watch: Callable[[], Watcher]) -> Watcher:
    return watch()


@pytest.fixture
def replay() -> Callable[..., Tensors]:
    """What synchronous rounds make of `start`, in plain numpy."""

    def merge_all(start: Tensors, updates: Iterable[Update], *, mean: bool = False) -> Tensors:
        """For each round and tensor: θ ← θ + Σ_k n_k·Δ_k / Σ_k n_k over the devices that hold it.

        Between rounds θ is float32, as devices get it; n_k = 1 for the plain mean.
        """
        theta = dict(start)
        rounds: dict[int, list[Update]] = {}
        for update in updates:
            rounds.setdefault(update.round, []).append(update)
        assert sorted(rounds) == list(range(len(rounds)))
        for number in range(len(rounds)):
            for name in theta:
                holders = [u for u in rounds[number] if name in u.tensors]
                if holders:
                    weights = [1 if mean else u.samples for u in holders]
                    changes = [u.tensors[name].astype(np.float64) for u in holders]
                    change = np.average(changes, axis=0, weights=weights)
                    theta[name] = (theta[name] + change).astype(np.float32)
        return theta

    return merge_all


@pytest.fixture
def same() -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    """Asserts that tensors are equal to 1e-6, by name."""

    def check(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)

    return check


# --- devices in threads ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SliceFile:
    """A slice on disk, and what is in it."""

    path: Path
    slice: Slice
    start: Tensors


@pytest.fixture
def small_slice(tmp_path: Path) -> SliceFile:
    """x·first/kernel + first/bias, then ·second/kernel: 50 parameters."""
    rng = np.random.default_rng(0)
    shapes = {"first/kernel": (6, 5), "first/bias": (5,), "second/kernel": (5, 3)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "first/kernel"], ["a"], "shared/1/MatMul"),
        helper.make_node("Add", ["a", "first/bias"], ["b"], "shared/1/Add"),
        helper.make_node("MatMul", ["b", "second/kernel"], ["y"], "shared/2/MatMul"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph(nodes, "slice", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    path = tmp_path / "shared.onnx"
    onnx.save(model, path)
    return SliceFile(path, *read_slice(path))


class ScriptedLearner:
    """Learner's methods without a model: every update is drawn from a seed."""

    def __init__(self, shared: Slice, samples: int, seed: int, pace: Callable[[], Any]) -> None:
        self.task = SimpleNamespace(samples=samples)
        self._shapes = {t.name: t.shape for t in shared.tensors}
        self._rng = np.random.default_rng(seed)
        self._pace = pace
        self.theta: Tensors = {}

    def fits(self, tensors: Tensors) -> bool:
        return all(tensors[name].shape == shape for name, shape in self._shapes.items())

    def adopt(self, tensors: Tensors) -> None:
        self.theta = {name: tensors[name] for name in self._shapes}

    def shared(self) -> Tensors:
        return self.theta

    def train(self, steps: int, exchange: str) -> Iterator[float]:
        self._pace()
        yield from [0.0] * steps

    def learnt(self, base: Tensors, exchange: str) -> Tensors:
        draw = self._rng.standard_normal
        return {n: (0.01 * draw(s)).astype(np.float32) for n, s in self._shapes.items()}

    def evaluate(self) -> dict[str, float]:
        return {}

    def state(self) -> Tensors:
        return self.theta

    def restore(self, state: Mapping[str, Any]) -> None:
        self.theta = dict(state)


class RecordingCheckpoints(Checkpoints):
    """Also keeps every update that its device has made, whatever became of it."""

    def __init__(self, folder: Path, device: str) -> None:
        super().__init__(folder, device=device, bundle="scripted")
        self.updates: list[Update] = []

    def save(self, checkpoint: Checkpoint) -> None:
        if checkpoint.outbox:
            self.updates.append(from_bytes(Update, checkpoint.outbox, limit=LARGEST))
        super().save(checkpoint)


class ScriptedDevice:
    """A real agent in a thread of its own."""

    def __init__(
        self,
        name: str,
        shared: Slice,
        *,
        broker: Address,
        folder: Path,
        samples: int = 10,
        seed: int = 0,
        pace: Callable[[], Any] = lambda: None,
        resend_seconds: float = 0.3,
        part_bytes: int = 900_000,
    ) -> None:
        self.name = name
        self.learner = ScriptedLearner(shared, samples, seed, pace)
        self.log = io.StringIO()
        self._checkpoints = RecordingCheckpoints(folder, name)
        log = Log(self.log, as_json=True)
        plan = Plan(steps=1, resend_seconds=resend_seconds)
        self._rounds = Rounds(self.learner, self._checkpoints, plan, log)  # type: ignore[arg-type]
        transport = MqttTransport(
            broker,
            client_id=TOPICS.client_id(name),
            subscriptions=TOPICS.of_device(name),
            will=Will(TOPICS.state(name), to_bytes(DeviceState(device=name, online=False))),
        )
        self._channel = Channel(
            transport, limit=LARGEST, part_bytes=part_bytes, held_limit=2 * LARGEST
        )
        self._agent = Agent(
            device=name,
            shared=shared,
            rounds=self._rounds,
            channel=self._channel,
            topics=TOPICS,
            limit=LARGEST,
            log=log,
            about={},
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._result: Future[dict[str, float]] = self._pool.submit(self._agent.run)

    @property
    def updates(self) -> list[Update]:
        """Every update that it has made, in order."""
        return self._checkpoints.updates

    def finish(self) -> None:
        """Waits until it has got the last θ_shared, and raises what went wrong in its thread."""
        try:
            self._result.result(PATIENCE)
        except TimeoutError:
            pytest.fail(f"{self.name} does not finish; it said: {self.log.getvalue()[-2000:]}")

    def close(self) -> None:
        self._rounds.stop()
        if not isinstance(self._result.exception(PATIENCE), Stopped | None):
            sys.stderr.write(self.log.getvalue())
        self._agent.leave()
        self._channel.close()
        self._pool.shutdown()


@pytest.fixture
def scripted(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Callable[..., ScriptedDevice]]:
    """Starts scripted devices: `scripted(name, slice, samples=…, seed=…, pace=…)`."""
    devices: list[ScriptedDevice] = []

    def start(name: str, shared: Slice, **options: Any) -> ScriptedDevice:
        folder = tmp_path / name
        device = ScriptedDevice(name, shared, broker=mosquitto.address, folder=folder, **options)
        devices.append(device)
        return device

    yield start
    for device in devices:
        device.close()
