"""Both branches of the digits pair, trained on the device's own runtime and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table

from firmware_sim.bundle import Bundle
from profiles import load_profile
from toolkit import zoo
from toolkit.calibration import calibration_for, digit_images
from toolkit.export.bundle import export
from toolkit.export.writing import make_folder
from toolkit.fresh_process import report_of

PROFILES = ("weak", "powerful")
TEST_SHARE = 5  # every fifth digit is kept for the test


def run_demo(out: Path, *, steps: int, progress: Callable[[str], None]) -> Table:
    """Exports, trains each bundle in a process of its own, and makes the table."""
    data = _write_digits(out)
    columns = []
    for name in PROFILES:
        profile = load_profile(name)
        keras.utils.set_random_seed(0)
        branch = zoo.build("digits", profile.branch)
        progress(f"exporting {branch.name} for {name}")
        examples = calibration_for(branch, "digits", None)
        bundle = export(branch, profile, out / name, calibration=examples)
        progress(f"training {branch.name} for {name}")
        columns.append(_column(bundle, _learn(bundle, data, steps)))
    table = Table("", *PROFILES, title=f"{steps} steps on real digits in the stock TFLite runtime")
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    return table


def _write_digits(out: Path) -> Path:
    images, labels = digit_images()
    test = np.arange(len(images)) % TEST_SHARE == 0
    make_folder(out)
    np.savez(
        out / "digits.npz",
        x_train=images[~test],
        y_train=labels[~test],
        x_test=images[test],
        y_test=labels[test],
    )
    return out / "digits.npz"


def _learn(bundle: Bundle, data: Path, steps: int) -> dict[str, Any]:
    """As a device would: a fresh process without TensorFlow."""
    command = [sys.executable, "-m", "firmware_sim.local", "--bundle", str(bundle.folder)]
    command += ["--data", str(data), "--steps", str(steps)]
    return report_of(command, failure="training failed")


def _column(bundle: Bundle, learnt: dict[str, Any]) -> dict[str, str]:
    manifest = bundle.manifest
    before, after = learnt["before"], learnt["after"]
    return {
        "branch": manifest["branch"]["name"],
        "parameters": f"{manifest['branch']['parameters']:,}",
        "of them shared": f"{manifest['branch']['shared_parameters']:,}",
        "operations": f"{manifest['branch']['operations']:,}",
        **{name: f"{entry['bytes'] / 1e3:,.0f} kB" for name, entry in manifest["files"].items()},
        "runtime": learnt["runtime"],
        "peak memory": f"{learnt['peak_bytes'] / 2**20:.0f} MiB",
        "step": f"{learnt['step_seconds'] * 1e3:.2f} ms",
        "test loss": f"{before['loss']:.2f} → {after['loss']:.2f}",
        "test accuracy": f"{before['accuracy']:.0%} → {after['accuracy']:.0%}",
    }
