"""`toolkit profiles`: for scripts, and for people."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from profiles import Profile, profile_names

Toolkit = Callable[..., Any]
Listing = Callable[[Path], dict[str, bytes]]
TOOLKIT = Path(sys.executable).with_name("toolkit")
NOISE = ("oneDNN", "cuda", "CUDA", "WARNING", "I0000", "W0000", "E0000", "Traceback")


def really(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, as a user runs it."""
    loud = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return subprocess.run(
        [TOOLKIT, *arguments], cwd=cwd, env=loud, capture_output=True, text=True, timeout=180
    )


def test_profiles_as_json_hold_every_key(toolkit: Toolkit) -> None:
    ran = toolkit("profiles", "--json")
    assert (ran.code, ran.err) == (0, "")
    listed = {profile["name"]: profile for profile in json.loads(ran.out)}
    assert tuple(listed) == profile_names()
    assert listed["weak"] == {
        "name": "weak",
        "description": "Weak device: one core and little memory",
        "branch": "lightweight",
        "batch_size": 32,
        "threads": 1,
        "runtime": "ai-edge-litert",
        "memory_cap_mib": 128,
        "storage_cap_mib": 64,
        "inference_quantisation": "int8",
        "update_quantisation": "int8",
        "packet_limit_kib": 128,
        "bandwidth_kbps": 1000,
        "interaction_rate": 1.0,
        "frozen_precision": "float32",
        "duty_cycle": 1.0,
        "temperature_limit_celsius": 0.0,
        "hysteresis_celsius": 5.0,
        "temperature_file": "/sys/class/thermal/thermal_zone0/temp",
        "battery_limit_percent": 0,
        "battery_folder": "/sys/class/power_supply",
        "pause_file": "",
        "quiet_hours": "",
    }


def test_profiles_for_people_fit_80_columns(toolkit: Toolkit) -> None:
    ran = toolkit("profiles")
    assert (ran.code, ran.err) == (0, "")
    rows = {line.split()[1]: line.split()[3::2] for line in ran.out.splitlines() if "MiB" in line}
    assert tuple(rows) == profile_names()
    assert "weak: Weak device: one core and little memory" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_one_profile_is_explained_key_by_key(toolkit: Toolkit) -> None:
    ran = toolkit("profiles", "raspberry-pi-zero-2")
    assert (ran.code, ran.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ran.out.splitlines()]
    shown = {row[0]: row[1] for row in rows if row}
    assert shown["memory_cap_mib"] == "192"
    assert shown["update_quantisation"] == "int8"
    assert {key.name for key in fields(Profile)} - {"name", "description"} <= shown.keys()
