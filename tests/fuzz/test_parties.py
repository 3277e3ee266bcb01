"""The parties notice what they are there for: exits, malformed θ_shared, texts, lost promises."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.protocol.messages import Shared, Verdict, from_bytes, to_bytes
from firmware_sim.device.plausibility import Plausibility
from firmware_sim.errors import FleetRefused
from firmware_sim.training.checkpoint import FILE, Checkpoints
from firmware_sim.training.learner import Learner
from toolkit.bench.fuzz import samples
from toolkit.bench.fuzz.parties import frames, party
from toolkit.bench.fuzz.parties.aggregator import AggregatorParty
from toolkit.bench.fuzz.parties.device import DeviceParty
from toolkit.bench.fuzz.parties.frames import Step
from toolkit.bench.fuzz.parties.party import DROP, RESTART, WAIT, Lines
from toolkit.bench.fuzz.parties.running_agent import BUNDLE
from toolkit.bench.fuzz.samples import DEVICE, RUN, SHAPES
from toolkit.bench.fuzz.target import Failed
from toolkit.bench.fuzz.targets import target_of


@pytest.fixture
def device(tmp_path: Path) -> Iterator[DeviceParty]:
    made = DeviceParty(tmp_path)
    yield made
    made.close()


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[AggregatorParty]:
    made = AggregatorParty(tmp_path)
    yield made
    made.close()


def test_steps_survive_their_bytes_and_any_bytes_are_steps() -> None:
    steps = [Step(3, b"abc"), Step(WAIT, bytes(4)), Step(RESTART)]
    assert frames.split(frames.join(steps)) == steps
    assert frames.split(b"\x01\xff\xffcut") == [Step(1, b"cut")]
    assert frames.split(b"\x01\x00") == []


def test_the_seeds_of_the_device_train_two_rounds(device: DeviceParty, tmp_path: Path) -> None:
    device.run(target_of("device").seeds()[0])
    checkpoint = Checkpoints(tmp_path / "state" / "plain", device=DEVICE, bundle=BUNDLE).load()
    assert checkpoint is not None
    assert (checkpoint.run, checkpoint.round) == (RUN, 1)
    assert checkpoint.outbox, "the second round was trained, and its update was ready"


def test_the_seeds_of_the_aggregator_merge_a_round(aggregator: AggregatorParty) -> None:
    aggregator.run(target_of("aggregator").seeds()[0])
    sync, asynchronous, signed = (service.state for service in aggregator.services)
    assert (sync.round, asynchronous.round, signed.round) == (1, 2, 1)
    assert all(np.any(value) for value in sync.shared.values())


def test_a_device_that_adopts_something_malformed_fails(
    device: DeviceParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Learner, "fits", lambda *_: True)
    monkeypatch.setattr(Plausibility, "check", lambda *_: None)
    good = frames.split(target_of("device").seeds()[0])
    theta: dict[str, Any] = {n: np.full(s, np.nan, np.float32) for n, s in SHAPES.items()}
    bad = to_bytes(Shared(run=RUN, round=0, fingerprint="f", tensors=theta))
    with pytest.raises(Failed, match=r"^a malformed θ_shared was adopted\.$"):
        device.run(frames.join([*good[:2], Step(1, bad)]))


def test_a_device_that_ends_without_a_reason_fails(
    device: DeviceParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise FleetRefused("no reason.")

    monkeypatch.setattr(Learner, "fits", refuse)
    with pytest.raises(FleetRefused, match=r"^no reason\.$"):
        device.run(target_of("device").seeds()[0])


def test_a_device_that_is_refused_may_end_and_starts_again(
    device: DeviceParty, tmp_path: Path
) -> None:
    good = frames.split(target_of("device").seeds()[0])
    refusal = Verdict(device=DEVICE, about="join", run=RUN, accepted=False, text="no.")
    again = [Step(3, to_bytes(refusal)), Step(WAIT, bytes(8)), Step(WAIT, bytes(8))]
    device.run(frames.join([good[0], *again]))
    assert device.members[0].ends == 0, "a single refusal may be forged"
    device.run(frames.join(2 * again))
    assert [member.ends for member in device.members] == [1, 0]
    device.run(frames.join([*good, Step(DROP), Step(RESTART), *good]))
    assert (tmp_path / "state" / "plain" / FILE).exists()
    assert not (tmp_path / "state" / "with key" / FILE).exists(), "nothing was signed"


def test_a_device_that_believes_what_nobody_signed_fails(
    device: DeviceParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.protocol.messages.check_signature", lambda *_: None)
    with pytest.raises(Failed, match=r"^(an unsigned θ_shared was adopted|a device sent an upd)"):
        device.run(target_of("device").seeds()[0])


def test_an_aggregator_that_forgets_what_it_promised_fails(
    aggregator: AggregatorParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = frames.split(target_of("aggregator").seeds()[0])
    monkeypatch.setattr("broker.aggregator.storage.store.Store.append", lambda *_: None)
    with pytest.raises(Failed, match=r"^a restart "):
        aggregator.run(frames.join([*steps[:-1], Step(RESTART)]))


def test_a_party_is_made_anew_and_its_history_does_it_again(
    aggregator: AggregatorParty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = target_of("aggregator").seeds()
    aggregator.run(first)
    aggregator.run(second)
    history = aggregator.reproducer(second)
    assert history == first + second
    again = AggregatorParty(tmp_path / "again")
    again.run(history)
    again.close()
    assert again.services[0].state.round == aggregator.services[0].state.round
    monkeypatch.setattr(party, "INPUTS", 2)
    aggregator.run(third)
    assert aggregator.reproducer(third) == third
    assert aggregator.services[0].state.round == 0


def test_a_line_that_does_not_print_is_a_failure() -> None:
    lines = Lines()
    lines.write('{"text": "fine"}\n')
    with pytest.raises(Failed, match=r"^a text in the log does not print: "):
        lines.write('{"text": "\\u001b[2J"}\n')


def test_samples_are_valid_unless_they_are_odd() -> None:
    rng = random.Random(0)
    for _ in range(20):
        samples.CONTRACT.check_update(to_bytes(samples.update(rng)), DEVICE)
        samples.CONTRACT.check_birth(to_bytes(samples.birth(rng)), DEVICE)
    verdicts = [samples.verdict(rng, odd=0.5) for _ in range(100)]
    assert {v.accepted for v in verdicts} == {True, False}
    assert from_bytes(Verdict, to_bytes(verdicts[0])) == verdicts[0]
