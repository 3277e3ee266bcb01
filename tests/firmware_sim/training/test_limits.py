"""A device keeps its caps: it refuses what cannot fit, and stops cleanly at what does not."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_sim.bundle.reader import Bundle, files_of
from firmware_sim.errors import CAP_REACHED, BundleError, LimitError
from firmware_sim.training.checkpoint import FILE, Checkpoints
from firmware_sim.training.limits import (
    Caps,
    caps_of,
    check_profile,
    check_storage,
    stored_bytes,
)

MIB = 2**20


def run_device(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firmware_sim.device", "--isolated", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def with_profile(bundle: Bundle, **changes: Any) -> Bundle:
    profile = replace(bundle.manifest.profile, **changes)
    return replace(bundle, manifest=replace(bundle.manifest, profile=profile))


# --- refusing ------------------------------------------------------------------------------------


def test_the_caps_are_the_profiles_and_memory_may_be_lowered(digits_bundle: Bundle) -> None:
    assert caps_of(digits_bundle) == Caps(128 * MIB, 64 * MIB)
    assert caps_of(digits_bundle, 100) == Caps(100 * MIB, 64 * MIB)


@pytest.mark.parametrize("cap", [-1, 0, 129, 10**9])
def test_a_cap_that_is_none_is_refused(digits_bundle: Bundle, cap: int) -> None:
    with pytest.raises(LimitError) as caught:
        caps_of(digits_bundle, cap)
    assert str(caught.value) == (
        f"a memory cap of {cap} MiB is not between 1 MiB and the 128 MiB of profile weak."
    )


def test_a_cap_below_what_was_measured_is_refused(digits_bundle: Bundle) -> None:
    peak = digits_bundle.measured.peak_bytes
    with pytest.raises(LimitError) as caught:
        caps_of(digits_bundle, 20)
    assert str(caught.value) == (
        f"the bundle at {digits_bundle.folder} took {peak / MIB:.0f} MiB when it was exported, "
        "and the memory cap is 20 MiB."
    )


def test_a_bundle_for_another_profile_is_refused(digits_bundle: Bundle) -> None:
    check_profile(digits_bundle, "weak")
    with pytest.raises(BundleError) as caught:
        check_profile(digits_bundle, "powerful")
    assert str(caught.value) == (
        f"the bundle at {digits_bundle.folder} was exported for profile weak, not for powerful."
    )
    with pytest.raises(BundleError) as caught:
        check_profile(with_profile(digits_bundle, threads=7), "weak")
    assert str(caught.value) == (
        f"profile weak has changed since the bundle at {digits_bundle.folder} was exported "
        "(threads was 7 and is 1); export it again."
    )


def test_what_is_stored_is_the_bundle_and_two_checkpoints(
    digits_bundle: Bundle, tmp_path: Path
) -> None:
    manifest = digits_bundle.manifest
    files = sum(manifest.files[name].bytes for name in files_of(manifest))
    state = sum(4 * math.prod(tensor.shape) for tensor in manifest.tensors)
    assert stored_bytes(manifest) == files + 2 * (state + 4 * 4 * 2480 + 65536)
    check_storage(digits_bundle, tmp_path, Caps(MIB, stored_bytes(manifest)))
    with pytest.raises(LimitError) as caught:
        check_storage(digits_bundle, tmp_path, Caps(MIB, stored_bytes(manifest) - 1))
    assert str(caught.value).startswith(
        f"the bundle and its checkpoint in {tmp_path} take {stored_bytes(manifest) / MIB:.1f} MiB"
    )


def test_the_device_says_why_it_refuses(digits_bundle: Bundle, tmp_path: Path) -> None:
    own = ("--bundle", digits_bundle.folder, "--task", "digits", "--state", tmp_path / "state")
    for options, sentence in (
        (("--profile", "powerful"), "was exported for profile weak, not for powerful.\n"),
        (("--memory-cap-mib", "0"), "is not between 1 MiB and the 128 MiB of profile weak.\n"),
    ):
        ran = run_device(*own, *options)
        assert ran.returncode == 1, ran.stderr
        assert ran.stderr.startswith("error: ") and ran.stderr.endswith(sentence)
        assert len(ran.stderr.splitlines()) == 1


# --- running -------------------------------------------------------------------------------------


def test_a_device_stays_within_its_cap(digits_bundle: Bundle, tmp_path: Path) -> None:
    ran = run_device(
        *("--bundle", digits_bundle.folder, "--task", "digits", "--state", tmp_path),
        *("--rounds", "3", "--steps", "5", "--profile", "weak"),
    )
    assert ran.returncode == 0, ran.stderr
    ended = json.loads(ran.stderr.splitlines()[-1])
    assert ended["event"] == "ended"
    measured = digits_bundle.measured.peak_bytes
    assert ended["peak_bytes"] < 128 * MIB
    assert ended["peak_bytes"] == pytest.approx(measured, rel=0.1), "the export measures a device"
    checkpoint = (tmp_path / FILE).stat().st_size
    files = sum(
        digits_bundle.manifest.files[name].bytes for name in files_of(digits_bundle.manifest)
    )
    assert files + 2 * checkpoint <= stored_bytes(digits_bundle.manifest)


def test_at_the_cap_a_device_stops_with_a_checkpoint(digits_bundle: Bundle, tmp_path: Path) -> None:
    """16 MiB of examples, of which the export knew nothing."""
    x, y = np.zeros((2**18, 8, 8, 1), np.uint8), np.zeros(2**18, np.int32)
    np.savez(tmp_path / "many.npz", x_train=x, y_train=y, x_test=x[:32], y_test=y[:32])
    cap = math.ceil(digits_bundle.measured.peak_bytes / MIB) + 2
    state = tmp_path / "state"
    own = ("--bundle", digits_bundle.folder, "--task", "npz", "--data", tmp_path / "many.npz")
    short = ("--state", state, "--rounds", "2", "--steps", "3")
    ran = run_device(*own, *short, "--memory-cap-mib", str(cap))
    assert ran.returncode == CAP_REACHED == 3, ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(f"error: the memory cap is reached; {state} ")
    model = digits_bundle.model_digest
    left = Checkpoints(state, device="device", bundle=model).load()
    assert left is not None
    assert (left.round, left.steps_done) == (0, 1)
    assert left.learner["model/optimizer/step"] == 1
    again = run_device(*own, *short)
    assert again.returncode == 0, again.stderr
    left = Checkpoints(state, device="device", bundle=model).load()
    assert left is not None
    assert left.learner["model/optimizer/step"] == 6


def test_behind_the_cap_stands_a_hard_limit() -> None:
    code = (
        "import numpy as np\n"
        "from firmware_sim.training.limits import Caps, limit_data\n"
        "limit_data(Caps(64 * 2**20, 0))\n"
        "np.ones(16 * 2**20, np.uint8)\n"
        "try:\n"
        "    np.ones(256 * 2**20, np.uint8)\n"
        "except MemoryError:\n"
        "    print('refused')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "refused\n"), ran.stderr


def test_freed_memory_goes_back_to_the_system() -> None:
    """Blocks of 4 MiB between small ones that stay; glibc would keep them after one of 24 MiB."""
    code = (
        "import numpy as np\n"
        "from firmware_sim.training.limits import return_freed_memory\n"
        "from firmware_sim.probe import memory_bytes\n"
        "return_freed_memory()\n"
        "np.ones(24 * 2**20, np.uint8)\n"
        "before = memory_bytes('VmRSS')\n"
        "pairs = [(np.ones(2**22, np.uint8), np.ones(2**14, np.uint8)) for _ in range(8)]\n"
        "held = memory_bytes('VmRSS') - before\n"
        "small = [pair[1] for pair in pairs]\n"
        "del pairs\n"
        "print(held, memory_bytes('VmRSS') - before)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    held, left = map(int, ran.stdout.split())
    assert held >= 32 * MIB
    assert left < 4 * MIB
