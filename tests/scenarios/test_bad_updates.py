"""Hostile and unlucky messages.

An aggregator is connected to a broker without passwords, and everybody may publish on every topic.
The device `good` has taken part in three rounds when `mallory` begins. Each of mallory's messages
is answered by a verdict that says why it was refused, is logged once and counted once, and changes
nothing: θ_shared is the same to the bit, and what `good` sends next gives what plain numpy gives.
"""

import signal
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from broker.protocol.messages import (
    SMALL,
    DeviceState,
    Reason,
    Shared,
    Update,
    Verdict,
    to_bytes,
)
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import Topics
from broker.protocol.wire import HEADER_LIMIT, encode
from broker.transport.mqtt import MqttTransport
from firmware_sim.errors import FleetRefused
from tests.harness.metrics import read_metrics
from tests.harness.programs import Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.slices import SliceFile
from tests.harness.waiting import wait_until
from tests.harness.watcher import Watcher

PATIENCE = 30.0  # seconds
SAMPLES = {"good": 30, "mallory": 10}
GARDEN = Topics("garden")  # another fleet on the same broker


@dataclass(frozen=True)
class Bad:
    """A message, on one of a device's topics, and the reason for which it is refused."""

    what: str
    payload: bytes
    reason: Reason
    device: str = "mallory"
    topic: str = "update"
    text: str = ""  # a part of the sentence in the verdict


class Fleet:
    """A running aggregator, and the test, which speaks for all devices over one connection."""

    def __init__(
        self,
        mode: str,
        files: SliceFile,
        programs: Programs,
        watch: Callable[[], Watcher],
        topics: Topics,
    ) -> None:
        self.mode = mode
        self.slice: Slice = files.slice
        self.topics = topics
        self._watch = watch
        self.watcher = watch()
        options = ("--mode", mode, "--deadline", "600")
        self.aggregator = programs.aggregator("--slice", files.path, *options)
        self.aggregator.wait_for("connected")
        self.run = self.aggregator.wait_for("start")["run"]
        self._transport = MqttTransport(programs.broker, client_id="everybody")
        birth = to_bytes(DeviceState.birth("good", self.slice, {"profile": "weak"}))
        assert self.ask("good", "state", birth).accepted

    def say(self, topic: str, payload: bytes) -> int:
        """Publishes; answers how many packets the watcher had seen before."""
        seen = len(self.watcher.packets)
        self._transport.publish(topic, payload)
        assert self._transport.flush(PATIENCE), f"the broker did not take a message on {topic}"
        return seen

    def ask(self, device: str, topic: str, payload: bytes) -> Verdict:
        """The aggregator's answer to a message."""
        since = self.say(f"{self.topics.root}/device/{device}/{topic}", payload)
        verdict: Verdict = self.watcher.wait_for(Verdict, self.topics.verdict(device), since=since)
        return verdict

    def update(self, device: str, round: int, **changes: Any) -> Update:
        """An update that has nothing wrong in it, but for the changes."""
        rng = np.random.default_rng([round, SAMPLES[device]])
        tensors = {
            t.name: rng.standard_normal(t.shape).astype(np.float32) for t in self.slice.tensors
        }
        update = Update(
            device=device,
            run=self.run,
            round=round,
            nonce=f"{device}-{round}",
            samples=SAMPLES[device],
            exchange="delta",
            fingerprint=self.slice.fingerprint,
            tensors=tensors,
        )
        return replace(update, **changes)

    def one_round(self, round: int) -> tuple[Update, Shared]:
        """`good` sends its update for a round; also what θ_shared is then."""
        update = self.update("good", round)
        since = len(self.watcher.packets)
        verdict = self.ask("good", "update", to_bytes(update))
        assert (verdict.accepted, verdict.nonce) == (True, update.nonce), verdict
        topic = self.topics.shared if self.mode == "sync" else self.topics.reply("good")
        newer = self.watcher.wait_for(Shared, topic, lambda s: s.round > round, since=since)
        return update, newer

    def current(self) -> Shared:
        """θ_shared as somebody gets it who comes now."""
        if self.mode == "sync":
            retained: Shared = self._watch().wait_for(Shared, self.topics.shared)
            return retained
        birth = to_bytes(DeviceState.birth("newcomer", self.slice, {}))
        since = self.say(self.topics.state("newcomer"), birth)
        reply: Shared = self.watcher.wait_for(Shared, self.topics.reply("newcomer"), since=since)
        return reply

    def refusals(self) -> list[tuple[str, str]]:
        """What the aggregator has logged as refused: device and reason."""
        return [(e["device"], e["reason"]) for e in self.aggregator.history("refused")]

    def counters(self) -> dict[str, float]:
        """What the aggregator has counted; it is stopped for that, and must not have ended."""
        assert self.aggregator.running, self.aggregator.log.read_text()
        self.aggregator.send(signal.SIGTERM)
        assert self.aggregator.exit_code() == 0
        assert "Traceback" not in self.aggregator.log.read_text()
        retained = self._watch().packets

        def find() -> bytes | None:
            topic = self.topics.aggregator_metrics
            return next((p.payload for p in retained if p.topic == topic), None)

        return read_metrics(wait_until(find, "the aggregator's metrics"))

    def close(self) -> None:
        self._transport.close()


@pytest.fixture(params=["sync", "async"])
def fleet(
    request: pytest.FixtureRequest,
    small_slice: SliceFile,
    programs: Programs,
    watch: Callable[[], Watcher],
    topics: Topics,
) -> Iterator[Fleet]:
    started = Fleet(request.param, small_slice, programs, watch, topics)
    yield started
    started.close()


def same(one: Shared, other: Shared) -> bool:
    return to_bytes(one) == to_bytes(other)


def assert_moved(before: Shared, after: Shared, change: Tensors) -> None:
    """One merge further, θ has moved by `change`."""
    assert after.round == before.round + 1
    for name, start in before.tensors.items():
        expected = start.astype(np.float64) + change[name]
        np.testing.assert_allclose(after.tensors[name], expected, rtol=0, atol=1e-6)


def with_first(update: Update, value: float) -> bytes:
    """The update with one number replaced."""
    tensors = {name: tensor.copy() for name, tensor in update.tensors.items()}
    next(iter(tensors.values())).flat[3] = value
    return to_bytes(replace(update, tensors=tensors))


def with_tensors(update: Update, **changes: npt.NDArray[Any] | None) -> bytes:
    """The update with tensors added, replaced, or (None) left out."""
    tensors = {**update.tensors, **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return to_bytes(replace(update, tensors=kept))


def part(payload: bytes, **changes: Any) -> bytes:
    """A message in one part, which is wrong in what it says about the whole."""
    fields = {"digest": "0" * 64, "index": 0, "count": 1, "bytes": len(payload), **changes}
    return encode("part", fields, {"part": np.frombuffer(payload, np.uint8)})


def framed(header: bytes) -> bytes:
    """Bytes that begin as a message does."""
    return struct.pack("<Q", len(header)) + header


def bad_times(fleet: Fleet, older: bytes) -> Iterator[Bad]:
    """Updates that came before; the fourth round is open."""
    past = Reason.LATE if fleet.mode == "sync" else Reason.REPLAYED
    fresh = replace(fleet.update("good", 0), nonce="fresh")
    yield Bad("replayed", older, past, "good")
    yield Bad("stale", to_bytes(fresh), past, "good")
    yield Bad("future", to_bytes(fleet.update("mallory", 4)), Reason.EARLY)
    yield Bad("far future", to_bytes(fleet.update("mallory", 2**52)), Reason.EARLY)
    yield Bad("beyond counting", to_bytes(fleet.update("mallory", 2**53)), Reason.MALFORMED)
    yield Bad("negative round", to_bytes(replace(fresh, round=-1)), Reason.MALFORMED, "good")


def bad_fields(base: Update) -> Iterator[Bad]:
    def changed(what: str, reason: Reason, **fields: Any) -> Bad:
        return Bad(what, to_bytes(replace(base, **fields)), reason)

    yield changed("another device's name", Reason.FOREIGN, device="good")
    yield changed("another run", Reason.FOREIGN, run="0123456789abcdef")
    yield Bad("impossible name", to_bytes(replace(base, device="a b")), Reason.FOREIGN, "a b")
    yield Bad("another's topic", to_bytes(base), Reason.FOREIGN, "good")
    yield changed("no nonce", Reason.MALFORMED, nonce="")
    yield changed("long nonce", Reason.MALFORMED, nonce="n" * 65)
    yield changed("exchange", Reason.WRONG_EXCHANGE, exchange="gradient")
    yield changed("fingerprint", Reason.WRONG_FINGERPRINT, fingerprint="f" * 64)
    for samples in (0, -1, 10**30):
        yield changed(f"samples {samples}", Reason.BAD_SAMPLES, samples=samples)
    for nonsense in (True, "7", 7.0, None, [7]):
        yield changed(f"samples {nonsense!r}", Reason.MALFORMED, samples=nonsense)


def bad_tensors(base: Update) -> Iterator[Bad]:
    name, tensor = next(iter(base.tensors.items()))
    for value in (np.nan, np.inf, -np.inf, 1e30, -1e30):
        yield Bad(f"value {value}", with_first(base, value), Reason.NOT_FINITE)
    for what, shape in (("transposed", (5, 6)), ("flat", (30,)), ("deeper", (1, 6, 5))):
        payload = with_tensors(base, **{name: tensor.reshape(shape)})
        yield Bad(what, payload, Reason.WRONG_SHAPE)
    empty = np.zeros((0, 5), np.float32)
    yield Bad("empty", with_tensors(base, **{name: empty}), Reason.WRONG_SHAPE)
    renamed = with_tensors(base, **{name: None, "first/Kernel": tensor})
    yield Bad("wrong name", renamed, Reason.WRONG_NAME)
    yield Bad("extra tensor", with_tensors(base, **{"third/kernel": tensor}), Reason.WRONG_NAME)
    yield Bad("missing tensor", with_tensors(base, **{name: None}), Reason.WRONG_FINGERPRINT)
    yield Bad("no tensors", to_bytes(replace(base, tensors={})), Reason.WRONG_NAME)
    for dtype in (np.float64, np.int32, np.int64, np.uint8):
        payload = with_tensors(base, **{name: tensor.astype(dtype)})
        yield Bad(f"{np.dtype(dtype)}", payload, Reason.WRONG_DTYPE)


def bad_bytes(base: Update, theta_bytes: int) -> Iterator[Bad]:
    good = to_bytes(base)
    header_end = 8 + struct.unpack_from("<Q", good)[0]
    for length in (0, 1, 8, 9, header_end // 2, header_end, header_end + 1, len(good) - 1):
        yield Bad(f"cut at {length}", good[:length], Reason.MALFORMED)
    yield Bad("one byte more", good + b"\0", Reason.MALFORMED)
    rng = np.random.default_rng(0)
    for length in (7, 8, 100, 10_000):
        yield Bad(f"{length} random bytes", rng.bytes(length), Reason.MALFORMED)
    yield Bad("nested JSON", framed(b"[" * 100_000), Reason.MALFORMED)
    yield Bad("length 2⁶³", struct.pack("<Q", 2**63) + good[8:], Reason.MALFORMED)
    verdict = Verdict(device="mallory", about="update", run=base.run, accepted=True)
    yield Bad("another kind", to_bytes(verdict), Reason.MALFORMED)
    too_large = bytes(HEADER_LIMIT + theta_bytes + 1)
    yield Bad("oversized", too_large, Reason.OVERSIZED)
    parts = {
        "oversized by parts": (part(good, count=2, bytes=2**40), Reason.OVERSIZED),
        "parts with a wrong digest": (part(good), Reason.MALFORMED),
        "part beyond the last": (part(good, index=1), Reason.MALFORMED),
        "part of nothing": (part(good, bytes=0), Reason.MALFORMED),
        "part that is none": (good, Reason.MALFORMED),
        "empty part": (b"", Reason.MALFORMED),
    }
    for what, (payload, reason) in parts.items():
        yield Bad(what, payload, reason, topic="update/0")


def bad_births(shared: Slice) -> Iterator[Bad]:
    def birth(what: str, text: str, *tensors: Any) -> Bad:
        state = DeviceState.birth("mallory", Slice.of((*shared.tensors[:1], *tensors)), {})
        return Bad(what, to_bytes(state), Reason.WRONG_FINGERPRINT, topic="state", text=text)

    bias = shared.tensors[1]
    unknown = replace(bias, name="third/bias", fingerprint="3" * 64)
    yield birth("unknown tensor", "tensor 'third/bias', which the fleet does not know", unknown)
    wider = replace(bias, shape=(7,), fingerprint="7" * 64)
    yield birth("shape", "'first/bias' has shape (7,) on the device and (5,) in the fleet", wider)
    other = replace(bias, fingerprint="8" * 64)
    yield birth("role", "'first/bias' has another role on the device than in the fleet", other)
    yield birth("first of two", "'first/bias' has another role", other, unknown)
    named = DeviceState.birth("good", shared, {})
    births: dict[str, tuple[bytes, Reason]] = {
        "another's birth": (to_bytes(named), Reason.FOREIGN),
        "birth of garbage": (b"online", Reason.MALFORMED),
        "birth that is cut off": (to_bytes(named)[:-1], Reason.MALFORMED),
        "birth with a shape of text": (
            to_bytes(replace(named, tensors_shared={"a": {"shape": "5"}})),
            Reason.MALFORMED,
        ),
        "oversized birth": (bytes(SMALL + 1), Reason.OVERSIZED),
        "birth larger than θ": (bytes(2 * SMALL), Reason.OVERSIZED),
    }
    for what, (payload, reason) in births.items():
        yield Bad(what, payload, reason, topic="state")


def test_what_is_wrong_is_refused_and_changes_nothing(fleet: Fleet) -> None:
    older = [fleet.one_round(round)[0] for round in range(3)]
    before = fleet.current()
    assert before.round == 3
    base = fleet.update("mallory", 3)
    theta_bytes = sum(tensor.nbytes for tensor in base.tensors.values())
    attacks = [
        *bad_times(fleet, to_bytes(older[1])),
        *bad_fields(base),
        *bad_tensors(base),
        *bad_bytes(base, theta_bytes),
        *bad_births(fleet.slice),
    ]
    for bad in attacks:
        verdict = fleet.ask(bad.device, bad.topic, bad.payload)
        about = "join" if bad.topic == "state" else "update"
        said = (verdict.accepted, verdict.about, verdict.reason)
        assert said == (False, about, bad.reason), (bad.what, verdict)
        assert bad.text in verdict.text, (bad.what, verdict)
        assert verdict.text.endswith("."), (bad.what, verdict)
    fleet.say(GARDEN.update("mallory"), to_bytes(base))
    again = fleet.ask("good", "update", to_bytes(older[2]))
    assert (again.accepted, again.nonce) == (True, older[2].nonce)  # told again, not merged again

    assert same(fleet.current(), before)
    update, after = fleet.one_round(3)
    assert_moved(before, after, update.tensors)

    assert fleet.refusals() == [(bad.device, bad.reason) for bad in attacks]
    counted = fleet.counters()
    reasons = Counter(bad.reason for bad in attacks)
    assert {k: n for k, n in counted.items() if k.startswith("refused")} == {
        f'refused{{reason="{reason}"}}': n for reason, n in reasons.items()
    }
    assert (counted["updates_accepted"], counted["updates_duplicate"]) == (4, 1)
    assert (counted["round"], counted["packets_dropped"]) == (4, 0)


def test_without_a_fault_the_same_update_is_merged(fleet: Fleet) -> None:
    """So it is the fault for which the others are refused, and nothing else about them."""
    _, before = fleet.one_round(0)
    mallory = fleet.update("mallory", 1)
    assert fleet.ask("mallory", "update", to_bytes(mallory)).accepted
    halfway = fleet.current()
    good, after = fleet.one_round(1)
    # α_k = n_k / Σ_j n_j with 10 and 30 samples.
    if fleet.mode == "sync":
        assert same(halfway, before)
        both = {n: 0.25 * d + 0.75 * good.tensors[n] for n, d in mallory.tensors.items()}
        assert_moved(before, after, both)
    else:  # good's θ is one merge old, so it counts w(1) = 1/√2
        assert_moved(before, halfway, {n: 0.25 * d for n, d in mallory.tensors.items()})
        assert_moved(halfway, after, {n: 0.75 * 0.5**0.5 * d for n, d in good.tensors.items()})


def test_a_birth_may_say_anything_about_its_device(fleet: Fleet) -> None:
    """It is logged as far as it is text, without its control characters."""
    about = {"device": "good", "name": "x", "self": 1, "profile": "\x1b[2J", "branch": "b" * 999}
    birth = DeviceState.birth("mallory", fleet.slice, about)
    assert fleet.ask("mallory", "state", to_bytes(birth)).accepted
    joined = fleet.aggregator.wait_for("joined", device="mallory")
    assert joined.keys() == {"time", "event", "device", "profile", "branch"}
    assert joined["profile"] == r"\x1b[2J"
    assert joined["branch"] == "b" * 80


def test_a_name_so_long_that_nobody_can_be_answered_is_counted(fleet: Fleet) -> None:
    """MQTT's topics end at 65,535 bytes, and `verdict` is a longer word than `update`."""
    name = "x" * (65_535 - len(fleet.topics.update("")))
    fleet.say(fleet.topics.update(name), b"")
    fleet.aggregator.wait_for("refused", device=name[:80], reason=Reason.MALFORMED)
    fleet.one_round(0)
    assert fleet.counters()['refused{reason="malformed"}'] == 1


def test_a_device_at_fault_ends_with_the_aggregators_reason(
    small_slice: SliceFile,
    programs: Programs,
    scripted: Callable[..., ScriptedDevice],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real agent whose training has gone wrong; to send it again would help nobody."""
    programs.aggregator("--slice", small_slice.path)
    ready = threading.Event()
    device = scripted("broken", small_slice.slice, pace=lambda: ready.wait(PATIENCE))
    nothing = {name: np.full_like(value, np.nan) for name, value in small_slice.start.items()}
    monkeypatch.setattr(device.learner, "learnt", lambda *_: nothing)
    ready.set()
    with pytest.raises(FleetRefused, match=r"refused an update: tensor 'first/bias' holds NaN"):
        device.finish()
