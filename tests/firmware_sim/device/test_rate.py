"""How much of a round a device does: its profile's interaction rate, or what --rate says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.reader import MANIFEST, Bundle
from firmware_sim.device.__main__ import main
from firmware_sim.training.rounds import mini_batches


@pytest.mark.parametrize(
    ("steps", "rate", "done"),
    [
        (100, 1.0, 100),
        (100, 0.25, 25),
        (10, 0.25, 2),
        (7, 0.5, 4),
        (3, 0.9, 3),
        (100, 0.004, 1),  # never nothing
        (1, 0.001, 1),
    ],
)
def test_mini_batches(steps: int, rate: float, done: int) -> None:
    assert mini_batches(steps, rate) == done


def change_profile(bundle: Bundle, **values: Any) -> None:
    """Edits the profile in a bundle's manifest; None takes a key out."""
    path = bundle.folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    profile = manifest["profile"] | values
    manifest["profile"] = {key: value for key, value in profile.items() if value is not None}
    path.write_text(json.dumps(manifest), encoding="utf-8")


def train_alone(bundle: Bundle, state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firmware_sim.device", "--isolated", "--rounds", "1"]
    command += ["--bundle", str(bundle.folder), "--task", "digits", "--state", str(state)]
    command += ["--steps", "8", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("in_profile", "options", "rate", "steps"),
    [(1.0, (), 1.0, 8), (0.5, (), 0.5, 4), (0.5, ("--rate", "0.25"), 0.25, 2)],
    ids=["as weak has it", "the profile's", "--rate before the profile's"],
)
def test_a_device_trains_at_its_rate_and_logs_it(
    own_bundle: Bundle,
    tmp_path: Path,
    in_profile: float,
    options: tuple[str, ...],
    rate: float,
    steps: int,
) -> None:
    if in_profile != 1.0:
        change_profile(own_bundle, interaction_rate=in_profile)
    ran = train_alone(own_bundle, tmp_path / "state", *options)
    assert ran.returncode == 0, ran.stderr
    said = [line for line in ran.stderr.splitlines() if line.startswith("{")]  # a runtime talks too
    events = {event["event"]: event for event in map(json.loads, said)}
    assert (events["start"]["rate"], events["start"]["steps"]) == (rate, steps)
    assert events["trained"]["steps"] == steps


def test_a_bundle_from_before_there_were_rates_is_refused(
    own_bundle: Bundle, tmp_path: Path
) -> None:
    change_profile(own_bundle, interaction_rate=None, bandwidth_kbps=None)
    ran = train_alone(own_bundle, tmp_path / "state")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"error: the profile in {own_bundle.folder / MANIFEST} lacks bandwidth_kbps, "
        "interaction_rate; export the bundle again.\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", "0"), "argument --rate: must be above 0 and at most 1"),
        (("--rate", "1.5"), "argument --rate: must be above 0 and at most 1"),
        (("--rate", "nan"), "argument --rate: must be above 0 and at most 1"),
        (("--rate", "half"), "argument --rate: invalid rate value: 'half'"),
        (("--simulate-link", "--loss", "1"), "--loss: must be at least 0 and below 1"),
        (("--simulate-link", "--loss", "-0.1"), "--loss: must be at least 0 and below 1"),
        (("--simulate-link", "--latency-ms", "-1"), "--latency-ms: must be from 0 to 60000"),
        (("--simulate-link", "--latency-ms", "inf"), "--latency-ms: must be from 0 to 60000"),
        (("--loss", "0.1"), "--latency-ms and --loss need --simulate-link"),
        (("--latency-ms", "5"), "--latency-ms and --loss need --simulate-link"),
    ],
)
def test_options_that_cannot_be_meant(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base = ("--isolated", "--bundle", "none", "--task", "digits", "--state", str(tmp_path / "s"))
    with pytest.raises(SystemExit) as caught:
        main([*base, *options])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
