"""A device does not come back, or hangs; the others go on.

One device is a real process that learns digits; the others are agents in threads that share the
same slice. SIGKILL ends the process for good, and mosquitto publishes its will; or SIGSTOP freezes
it while its connection stays. Expected: nobody waits for a device that is gone; for one that hangs
a round waits until its deadline; too few devices change nothing but the count of extensions; and
what the frozen device learnt is refused as late, after which it goes on from the newest θ_shared.
"""

import signal
from collections.abc import Callable
from threading import Semaphore

import pytest

from broker.aggregator.slice_file import read_slice
from broker.protocol.messages import DeviceState, Reason, Shared, Update, Verdict
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import Topics
from firmware_sim.bundle.reader import SLICE, Bundle
from tests.harness.arithmetic import UNBOUNDED, assert_same, replay
from tests.harness.metrics import read_metrics
from tests.harness.programs import Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.waiting import wait_until
from tests.harness.watcher import Watcher

pytestmark = pytest.mark.xdist_group("fleet")


@pytest.fixture
def bundle(bundles: dict[str, Bundle]) -> Bundle:
    return bundles["weak"]


@pytest.fixture
def shared(bundle: Bundle) -> Slice:
    return bundle.manifest.shared


@pytest.fixture
def start(bundle: Bundle) -> Tensors:
    return read_slice(bundle.folder / SLICE)[1]


def test_one_that_is_gone_is_not_waited_for(
    bundle: Bundle,
    shared: Slice,
    start: Tensors,
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    topics: Topics,
) -> None:
    """The deadline is longer than any test; the round closes because the will says that it can."""
    options = ("--quorum", "2", "--deadline", "3600", "--rounds", "5")
    aggregator = programs.aggregator("--slice", bundle.folder / SLICE, *options, *UNBOUNDED)
    gone = programs.device("gone", bundle, "--steps", "20")
    aggregator.wait_for("joined", device="gone")
    stay = [scripted(name, shared, samples=100, seed=ord(name)) for name in "ab"]
    gone.wait_for("evaluated", round=2)
    gone.kill()
    watcher.wait_for(DeviceState, topics.state("gone"), lambda state: not state.online)
    aggregator.wait_for("left", device="gone")
    for device in stay:
        device.finish()
    assert aggregator.exit_code() == 0
    final = watcher.wait_for(Shared, topics.shared, lambda s: s.last)

    accepted = watcher.accepted()
    assert {u.round for u in accepted if u.device in "ab"} == set(range(5))
    rounds_of_gone = [u.round for u in accepted if u.device == "gone"]
    assert rounds_of_gone in ([0, 1], [0, 1, 2])  # the last one if it was already on its way
    merged = [event["devices"] for event in aggregator.history("merged")]
    assert merged == [3 if n in rounds_of_gone else 2 for n in range(5)]
    assert not aggregator.history("extended")
    assert_same(final.tensors, replay(start, accepted))


def test_too_few_change_nothing(
    bundle: Bundle,
    shared: Slice,
    start: Tensors,
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    topics: Topics,
) -> None:
    """Two are needed and one is left, until a third one, which is new, takes the place."""
    options = ("--quorum", "2", "--deadline", "0.2", "--rounds", "3")
    aggregator = programs.aggregator("--slice", bundle.folder / SLICE, *options, *UNBOUNDED)
    gone = programs.device("gone", bundle, "--steps", "20")
    aggregator.wait_for("joined", device="gone")
    stays = scripted("stays", shared, samples=100, seed=1)
    gone.wait_for("evaluated", round=1)
    gone.send(signal.SIGSTOP)  # it will not send anything any more
    aggregator.wait_for("accepted", device="stays", round=1)
    gone.kill()
    aggregator.wait_for("left", device="gone")
    before, extended = len(watcher.packets), len(aggregator.history("extended"))
    wait_until(lambda: len(aggregator.history("extended")) >= extended + 3, "three extensions")

    assert [e["round"] for e in aggregator.history("extended")[extended:][:3]] == [1, 1, 1]
    assert [e["devices"] for e in aggregator.history("extended")[extended:][:3]] == [1, 1, 1]
    assert [e["round"] for e in aggregator.history("merged")] == [1]
    topics_since = {packet.topic for packet in watcher.packets[before:]}
    assert not any(topic.startswith(topics.shared) for topic in topics_since)

    scripted("spare", shared, samples=30, seed=2).finish()
    stays.finish()
    assert aggregator.exit_code() == 0
    final = watcher.wait_for(Shared, topics.shared, lambda s: s.last)
    accepted = watcher.accepted()
    assert {(u.device, u.round) for u in accepted} == {
        *(("gone", 0), ("stays", 0)),
        *((name, n) for name in ("stays", "spare") for n in (1, 2)),
    }
    assert_same(final.tensors, replay(start, accepted))
    wait_until(lambda: counters(watcher, topics).get("rounds_merged") == 3, "the last metrics")
    counted = len(aggregator.history("extended"))
    assert counters(watcher, topics)["rounds_extended"] == counted


def test_one_that_hangs_holds_the_others_up_until_the_deadline(
    bundle: Bundle,
    shared: Slice,
    start: Tensors,
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    topics: Topics,
) -> None:
    """The others train a round when they may, so only the hanging device ever costs a deadline."""
    options = ("--quorum", "2", "--deadline", "4", "--rounds", "8")
    aggregator = programs.aggregator("--slice", bundle.folder / SLICE, *options, *UNBOUNDED)
    hangs = programs.device("hangs", bundle, "--steps", "200", "--resend-seconds", "1")
    aggregator.wait_for("joined", device="hangs")
    may_train = {name: Semaphore(0) for name in "ab"}
    others = [
        scripted(name, shared, samples=100, seed=ord(name), pace=may.acquire)
        for name, may in may_train.items()
    ]

    def others_train(rounds: int) -> None:
        for may in may_train.values():
            may.release(rounds)

    hung = 0  # the round in which it hangs
    while True:
        aggregator.wait_for("accepted", device="hangs", round=hung)
        others_train(1)
        hung += 1
        hangs.wait_for("evaluated", round=hung)
        hangs.send(signal.SIGSTOP)
        if not [event for event in hangs.history("trained") if event["round"] == hung]:
            break  # it hangs in its training; otherwise the update may be on its way
        hangs.send(signal.SIGCONT)
        assert hung < 4
    others_train(2)
    aggregator.wait_for("merged", round=hung + 2)
    hangs.send(signal.SIGCONT)
    aggregator.wait_for("accepted", device="hangs", round=hung + 2)  # it takes part again
    others_train(8)
    for device in others:
        device.finish()
    assert [hangs.exit_code(), aggregator.exit_code()] == [0, 0]
    final = watcher.wait_for(Shared, topics.shared, lambda s: s.last)

    accepted = watcher.accepted()
    assert {u.round for u in accepted if u.device in "ab"} == set(range(8))
    mine = [u.round for u in accepted if u.device == "hangs"]
    assert mine[: hung + 1] == [*range(hung), hung + 2]
    silent = [event["devices"] for event in aggregator.history("silent")]
    assert silent[0] == ["hangs"]
    first_late = next(v for v in watcher.heard(Verdict, topics.verdict("hangs")) if not v.accepted)
    assert (first_late.reason, first_late.round) == (Reason.LATE, hung)
    sent = {u.nonce: u for u in watcher.heard(Update, topics.update("hangs"))}
    rounds = [u.round for u in sent.values()]
    assert rounds == sorted(set(rounds))  # every round is trained once at most
    assert hung + 1 not in rounds  # after its late one it starts from the newest
    assert_same(final.tensors, replay(start, accepted))


def counters(watcher: Watcher, topics: Topics) -> dict[str, float]:
    """The newest of the aggregator's."""
    texts = [p.payload for p in watcher.packets if p.topic == topics.aggregator_metrics]
    return read_metrics(texts[-1]) if texts else {}
