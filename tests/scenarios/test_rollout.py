"""A new pack over the broker: taken, tried for a round, kept; a bad one never stops a device.

A real mosquitto runs what was provisioned, an aggregator merges without end, and a device runs from
the pack that was carried to it. Its operator rolls out packs with `toolkit rollout`: another
branch, then packs that are signed by a stranger, older, above the memory cap, and of a branch that
cannot be loaded or hangs. Last, the device is killed at every stage of a good one. Expected: after
each of them the device learns on, with the new pack or with the one before.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.durable import is_claimed
from firmware_sim.bundle.reader import MANIFEST, MODEL, Bundle
from tests.harness.programs import Program
from tests.harness.waiting import wait_until
from toolkit.fleet.processes import Child, stopping
from toolkit.provisioning.fleet import Provisioned, provision
from toolkit.provisioning.pack import pack

pytestmark = pytest.mark.xdist_group("fleet")
Toolkit = Callable[..., Any]


@dataclass
class Farm:
    """A fleet with one device, pi-1, and its operator."""

    made: Provisioned
    url: str
    folder: Path
    toolkit: Toolkit
    children: list[Child] = field(default_factory=list)
    version: int = 1

    def start(self, module: str, *arguments: str | Path) -> Program:
        log = self.folder / f"{len(self.children)}.jsonl"
        child = Program(module, module, list(map(str, arguments)), log)
        self.children.append(child)
        return child

    def device(self) -> Program:
        """The same command each time, as its unit would."""
        carried = self.made.folder / "packs" / "pi-1.pack"
        return self.start("firmware_sim.device", "--pack", carried, "--state", self.state)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def packed(
        self, bundle: Path, *more: str, version: int = 0, folder: Path | None = None
    ) -> Path:
        self.version += 1
        where, number = folder or self.made.folder, version or self.version
        return pack(bundle, where, None, fleet="farm", version=number, arguments=more).file

    def rollout(self, file: Path, **options: Any) -> Any:
        words = [w for name, value in options.items() for w in (f"--{name}", str(value))]
        return self.toolkit("rollout", file, *words, *self.as_operator())

    def as_operator(self) -> list[str]:
        own = self.made.credentials("operator")
        link = ["--fleet", "farm", "--broker", self.url, "--user", "operator"]
        files = ["--password-file", own / "password", "--ca-file", own / "ca.pem"]
        signing = self.made.credentials("aggregator") / "signing.key"
        return [*link, *map(str, files), "--signing-key", str(signing)]


@pytest.fixture
def farm(
    bundles: dict[str, Bundle],
    provisioned_mosquitto: Callable[[Path], Mosquitto],
    toolkit: Toolkit,
    tmp_path: Path,
) -> Iterator[Farm]:
    folder = tmp_path / "farm"
    made = provision("farm", ["pi-1"], folder, host_names=["127.0.0.1"], roles=["operator"])
    with provisioned_mosquitto(made.broker) as mosquitto:
        url = provision("farm", [], folder, port=mosquitto.port).fleet.url
        pack(
            bundles["weak"].folder, folder, "pi-1",
            fleet="farm", version=1, arguments=["--task", "digits", "--steps", "4"],
        )  # fmt: skip
        ours = Farm(made, url, tmp_path, toolkit)
        own = made.credentials("aggregator")
        with stopping(ours.children):
            ours.start(
                "broker.aggregator", "--fleet", "farm", "--broker", url,
                "--user", "aggregator", "--password-file", own / "password",
                "--ca-file", own / "ca.pem", "--signing-key", own / "signing.key",
                "--slice", bundles["weak"].slice, "--slice", bundles["powerful"].slice,
                "--state", tmp_path / "aggregator",
            )  # fmt: skip
            yield ours


def learns_on(device: Program) -> None:
    trained = len(device.history("trained"))
    wait_until(lambda: len(device.history("trained")) > trained + 2, "it learns on")


def changed(bundle: Bundle, folder: Path, change: Callable[[Path], None]) -> Path:
    """A copy of the bundle with other files, which its manifest describes as if they were right."""
    shutil.copytree(bundle.folder, folder)
    change(folder)
    return folder


def garbage(folder: Path) -> None:
    model = folder / MODEL
    model.write_bytes(b"no model at all" * 100)
    table = json.loads((folder / MANIFEST).read_text())
    table["files"][MODEL] = {
        "bytes": model.stat().st_size,
        "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
    }
    (folder / MANIFEST).write_text(json.dumps(table))


def greedy(folder: Path) -> None:
    table = json.loads((folder / MANIFEST).read_text())
    table["measured"]["peak_bytes"] = 300 * 2**20
    (folder / MANIFEST).write_text(json.dumps(table))


def test_a_device_takes_another_branch_and_no_bad_pack_stops_it(
    farm: Farm, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    device = farm.device()
    device.wait_for("trained")

    said = farm.rollout(farm.packed(bundles["powerful"].folder))
    assert said.code == 0, said
    assert "pi-1 runs it" in said.out
    assert device.wait_for("inherited")["tensors"] > 0
    device.wait_for("pack_kept", version=2)
    assert device.wait_for("pack", version=2)["device"] == "pi-1"
    learns_on(device)

    stranger = provision("farm", ["pi-1"], tmp_path / "stranger").folder
    weak = bundles["weak"]
    greedily = changed(bundles["powerful"], tmp_path / "greedy", greedy)
    broken = changed(weak, tmp_path / "broken", garbage)
    for file, stage, why in (
        (farm.packed(weak.folder, folder=stranger), "refuses it", "is signed with another key"),
        (farm.packed(weak.folder, version=1), "refuses it", "version 2 is newer"),
        (farm.packed(greedily), "went back", "took 300 MiB when it was exported"),
        (farm.packed(broken), "went back", "the device ended with exit code 1"),
        (farm.packed(weak.folder, "--steps", "10000000"), "went back", "a round within 6 s"),
    ):
        said = farm.rollout(file, within=6)
        assert said.code == 1
        assert f"pi-1 {stage}: " in said.out, said
        assert why in said.out, said
        learns_on(device)
        assert device.history("pack")[-1]["version"] == 2


def test_killed_at_every_stage_the_old_one_goes_on(farm: Farm, bundles: dict[str, Bundle]) -> None:
    device = farm.device()
    device.wait_for("trained")
    file = farm.packed(bundles["powerful"].folder)
    operator = farm.start("toolkit", "rollout", file, *farm.as_operator())

    for event in ("pack_trying", "pack", "joined", "inherited"):
        # The first is of the old pack; the others are of the one on trial, which is tried thrice.
        tried = {"version": 2} if event in ("pack", "pack_trying") else {}
        device.wait_for(event, **tried)
        device.kill()
        wait_until(lambda: not is_claimed(farm.state / "packs"), "the end of its child")
        device = farm.device()
    assert device.wait_for("pack_rolled_back", version=2)["reason"] == (
        "it has ended 3 times without finishing a round"
    )
    device.wait_for("pack", version=1)
    device.wait_for("resumed")
    device.wait_for("trained")
    assert operator.exit_code() == 1
    assert "it has ended 3 times" in operator.log.read_text(encoding="utf-8")
    assert sorted(path.name for path in (farm.state / "packs").iterdir()) == [
        "1",
        "failed.json",
        "lock",
        "trusted.key",
    ]
