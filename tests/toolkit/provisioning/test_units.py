"""The systemd units that are provisioned: the profile's numbers, and what systemd says of them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from profiles import load_profile
from toolkit.provisioning.fleet import provision, rotate

DEVICE, AGGREGATOR, BROKER = (
    f"stemshare-{name}.service" for name in ("device", "aggregator", "broker")
)
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three of a fleet; to be read only."""
    out = tmp_path_factory.mktemp("units") / "farm"
    made = provision("farm", ["pi-1"], out, profile=load_profile("raspberry-pi-zero-2"))
    return {
        DEVICE: made.credentials("pi-1") / DEVICE,
        AGGREGATOR: made.credentials("aggregator") / AGGREGATOR,
        BROKER: made.broker / BROKER,
    }


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_a_device_may_take_what_its_profile_says(units: dict[str, Path]) -> None:
    device = settings(units[DEVICE])
    assert device["MemoryMax"] == ["192M"] == [f"{profile_cap('raspberry-pi-zero-2')}M"]
    (command,) = device["ExecStart"]
    assert "--pack /var/lib/stemshare-device/device.pack " in command
    assert "--trust /etc/stemshare/trust.key " in command
    assert device["Description"] == ["Device pi-1 of fleet farm"]
    assert "pi-1" not in command, "who it is says the pack"


def test_the_aggregator_may_take_what_a_gateways_profile_says(units: dict[str, Path]) -> None:
    aggregator = settings(units[AGGREGATOR])
    cap = profile_cap("gateway")
    assert aggregator["MemoryMax"] == [f"{cap}M"]
    (command,) = aggregator["ExecStart"]
    assert f"--inbox-mib {cap // 3} " in command
    assert "--broker mqtts://localhost:8883 " in command
    assert "stemshare-broker.service" in aggregator["After"][0].split()
    files = {credential.partition(":")[0] for credential in aggregator["LoadCredential"]}
    assert "--members /etc/stemshare/aggregator/members " in command
    assert "--signing-key %d/signing.key " in command
    assert files == set(re.findall(r"%d/(\S+)", command)), "what is used is what is handed over"


@pytest.mark.parametrize("name", [DEVICE, AGGREGATOR])
def test_they_are_watched_started_again_and_confined(name: str, units: dict[str, Path]) -> None:
    unit = settings(units[name])
    assert unit["Type"] == ["notify"]
    assert unit["WatchdogSec"] and unit["Restart"] == ["on-failure"]
    final = {DEVICE: "2", AGGREGATOR: "2 4"}  # 4: a newer aggregator has the fleet
    assert unit["RestartPreventExitStatus"] == [final[name]]
    (before,), (after,) = unit["ExecStartPre"], unit["ExecStopPost"]
    assert before.replace(" wait ", " ended ") == after
    for hardening in ("NoNewPrivileges", "PrivateTmp", "MemoryDenyWriteExecute"):
        assert unit[hardening] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["SystemCallFilter"] == ["@system-service", "~@privileged"]


def test_a_profile_is_kept_until_another_is_said(tmp_path: Path) -> None:
    out = tmp_path / "farm"
    unit = provision("farm", ["a"], out).credentials("a") / DEVICE

    def limit() -> str:
        return settings(unit)["MemoryMax"][0]

    assert limit() == f"{profile_cap('weak')}M"
    provision("farm", ["a"], out, profile=load_profile("raspberry-pi-5"))
    assert limit() == f"{profile_cap('raspberry-pi-5')}M"
    provision("farm", ["a", "b"], out)
    rotate(out, "a")
    assert limit() == f"{profile_cap('raspberry-pi-5')}M"


def test_what_the_owner_says_to_the_aggregator_stays(tmp_path: Path) -> None:
    out = tmp_path / "farm"
    options = provision("farm", [], out).credentials("aggregator") / "options"
    assert "--slice " in options.read_text(encoding="utf-8")
    options.write_text("OPTIONS=--quorum 3\n", encoding="utf-8")
    provision("farm", ["a"], out)
    rotate(out, "aggregator")
    assert options.read_text(encoding="utf-8") == "OPTIONS=--quorum 3\n"


@needs_systemd
def test_systemd_understands_every_line_and_finds_them_confined(
    units: dict[str, Path], tmp_path: Path
) -> None:
    assert ANALYZE is not None
    for name, unit in units.items():
        text = unit.read_text(encoding="utf-8")
        present = re.sub(r"(?<==)/(opt|usr)/\S+/(python|mosquitto)\b", "/bin/true", text)
        (tmp_path / name).write_text(present, encoding="utf-8")
    paths = [tmp_path / name for name in units]
    ran = subprocess.run([ANALYZE, "verify", *paths], capture_output=True, text=True)
    ours = [line for line in ran.stderr.splitlines() if "stemshare" in line]
    assert (ran.returncode, ours) == (0, [])
    for path in paths:
        command = [ANALYZE, "security", "--offline=true", "--threshold=20", "--no-pager"]
        ran = subprocess.run([*command, str(path)], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-200:]  # exposure of at most 2.0 of 10


def profile_cap(name: str) -> int:
    return load_profile(name).memory_cap_mib
