"""A fleet over slow links that lose packets.

An aggregator and two devices, one weak and one powerful, run as processes over mosquitto; the
devices simulate links with their profile's bandwidth, a latency, and losses. The weak one trains
at half the rate. Expected: all end by themselves, every update was counted once, every device has
the fleet's last θ_shared, and the log says at what rate a device has trained.
"""

from pathlib import Path

import pytest

from broker.protocol.messages import Shared
from broker.protocol.topics import Topics
from firmware_sim.bundle.reader import SLICE, Bundle
from firmware_sim.training.checkpoint import Checkpoints
from tests.harness.arithmetic import assert_same
from tests.harness.programs import Programs
from tests.harness.watcher import Watcher

pytestmark = pytest.mark.xdist_group("fleet")

ROUNDS = 4


def test_a_fleet_finishes_over_links_that_lose_packets(
    bundles: dict[str, Bundle],
    programs: Programs,
    watcher: Watcher,
    topics: Topics,
    tmp_path: Path,
) -> None:
    link = ("--simulate-link", "--latency-ms", "10", "--loss", "0.1", "--resend-seconds", "0.5")
    rates = {"weak": ("--rate", "0.5"), "powerful": ()}
    devices = {
        profile: programs.device(profile, bundle, *link, "--steps", "4", *rates[profile])
        for profile, bundle in bundles.items()
    }
    slices = [part for bundle in bundles.values() for part in ("--slice", bundle.folder / SLICE)]
    options = ("--quorum", "2", "--rounds", str(ROUNDS), "--deadline", "600")
    aggregator = programs.aggregator(*slices, *options)
    assert [p.exit_code() for p in (aggregator, *devices.values())] == [0, 0, 0]

    assert aggregator.history("counters")[0]["updates_accepted"] == 2 * ROUNDS
    for profile, (rate, steps) in {"weak": (0.5, 2), "powerful": (1.0, 4)}.items():
        begun = devices[profile].history("start")[0]
        assert (begun["rate"], begun["steps"]) == (rate, steps)
        assert [e["steps"] for e in devices[profile].history("trained")] == [steps] * ROUNDS

    last = watcher.wait_for(Shared, topics.shared, lambda shared: shared.last)
    for profile, bundle in bundles.items():
        digest = bundle.model_digest
        kept = Checkpoints(tmp_path / profile, device=profile, bundle=digest).load()
        assert kept is not None
        own = {t.name for t in bundle.manifest.shared.tensors}
        theta = {name: last.tensors[name] for name in own}
        assert_same({name: kept.learner[f"model/{name}"] for name in own}, theta)
