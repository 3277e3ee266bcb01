"""Networks of the zoo train under the cap of the smallest shipped profile that chooses it.

A bundle is exported, and a real device trains two rounds alone; another process goes on from its
checkpoint for a third. Both must end well, and the kernel's own count of their memory must be
below the cap. Digits are real and Breakout is played; CIFAR-10's images are noise.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest

from firmware_sim.bundle.reader import Bundle
from profiles import Profile, load_profile, profile_names
from toolkit import zoo
from toolkit.export.bundle import export

MIB = 2**20
Entry = tuple[str, str, str]

# One of each kind; `toolkit bench caps` tries every branch of the zoo with every profile.
ENTRIES: list[Entry] = [
    ("atari", "lightweight", "share-first"),
    ("digits", "lightweight", "cascading"),
    ("cifar10", "complex", "cascading"),
    ("minatar", "complex", "share-first"),
]

# A process begins with what its parent had: between the tests and the device stands a small one.
LAUNCHER = """
import os, sys
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class Ended:
    """A device that ended well; sizes in bytes."""

    said_peak: int  # by itself
    kernel_peak: int
    rounds: list[int]  # that it trained


def smallest_profile_for(branch: str) -> Profile:
    offered = [load_profile(name) for name in profile_names()]
    return min((p for p in offered if p.branch == branch), key=lambda p: p.memory_cap_mib)


def run_device(bundle: Bundle, *options: str | Path) -> Ended:
    device = ["-m", "firmware_sim.device", "--isolated", "--bundle", str(bundle.folder)]
    command = [sys.executable, "-c", LAUNCHER, *device, *map(str, options)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    return Ended(
        said_peak=events[-1]["peak_bytes"],
        kernel_peak=int(ran.stdout.splitlines()[-1]) * 1024,
        rounds=[event["round"] for event in events if event["event"] == "trained"],
    )


def data_of(task: str, folder: Path) -> list[str | Path]:
    if task == "digits":
        return ["--task", task]
    if task != "cifar10":  # a game
        return ["--task", task, "--warm-up-steps", "100"]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (64, 32, 32, 3), np.uint8), rng.integers(0, 10, 64, np.int32)
    np.savez(folder / "noise.npz", x_train=x, y_train=y, x_test=x[:32], y_test=y[:32])
    return ["--task", "npz", "--data", folder / "noise.npz"]


@pytest.fixture
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    """An entry's bundle for its smallest profile; two of them other tests need as well."""
    entry: Entry = request.param
    profile = smallest_profile_for(entry[1])
    if entry == ENTRIES[0]:
        made: Bundle = request.getfixturevalue("atari_bundle")
    elif entry == ENTRIES[1]:
        made = request.getfixturevalue("bundles")["weak"]
    else:
        keras.utils.set_random_seed(0)
        made = export(zoo.build(*entry), profile, tmp_path / "bundle")
    assert made.manifest.profile == profile
    return made


@pytest.mark.parametrize(
    ("bundle", "task"),
    [(entry, entry[0]) for entry in ENTRIES],
    ids=map("-".join, ENTRIES),
    indirect=["bundle"],
)
def test_a_device_keeps_within_its_cap(bundle: Bundle, task: str, tmp_path: Path) -> None:
    profile = bundle.manifest.profile
    measured = bundle.measured.peak_bytes
    assert bundle.manifest.estimated["peak_bytes"] == pytest.approx(measured, rel=0.15)

    own = [*data_of(task, tmp_path), "--state", tmp_path / "state", "--profile", profile.name]
    own += ["--steps", "2", "--evaluate-every", "9"]
    first = run_device(bundle, *own, "--rounds", "2")
    second = run_device(bundle, *own, "--rounds", "3")
    assert (first.rounds, second.rounds) == ([0, 1], [2])
    for ended in (first, second):
        assert ended.kernel_peak <= profile.memory_cap_mib * MIB
        assert ended.said_peak == pytest.approx(ended.kernel_peak, rel=0.02)
