"""`toolkit bench replay` as a command, and a device that keeps its replay on disk."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.reader import Bundle
from profiles import Profile
from toolkit.bench import zoo_bundles
from toolkit.bench.playing.replay import GAMES, OURS
from toolkit.branch.branch import Branch


def test_the_command_tells_bytes_and_times(
    toolkit: Callable[..., Any],
    atari_bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported: list[tuple[str, str, str]] = []

    def export_branch(branch: Branch, task: str, profile: Profile, folder: Path) -> Bundle:
        exported.append((branch.name, task, profile.name))
        return atari_bundle  # an export of Atari takes longest of all, and the network is the same

    monkeypatch.setattr(zoo_bundles, "export_branch", export_branch)
    out = tmp_path / "new" / "replay.json"
    options = ("--frames", "100", "--steps", "100", "--batches", "10", "--on-disk")
    ran = toolkit("bench", "replay", "--out", out, *options)
    assert (ran.code, ran.err) == (0, "")
    assert exported == [("atari-lightweight", "atari", "gateway")]
    assert f"every number is in {out}" in ran.out.replace("\n", " ")
    report = json.loads(out.read_text())
    assert tuple(report["games"]) == GAMES
    for result in report["games"].values():
        ours, alone = result["codecs"][OURS], result["codecs"]["deflate 6, fixed codes"]
        assert 0 < ours["bytes"] < alone["bytes"] < 84 * 84
    assert [(d["game"], d["on_disk"]) for d in report["devices"]] == [
        *((game, False) for game in GAMES),
        (GAMES[0], True),
    ]
    for found in report["devices"]:
        # A hundred steps to begin with, and one before each of ten batches.
        assert found["steps"] == 109
        assert 0 < found["held_bytes"] < 109 * 84 * 84
        assert 0 < found["sample_to_step"] < 1
    memory, disk = report["devices"][0], report["devices"][-1]
    assert (memory["held_bytes"], memory["loss"]) == (disk["held_bytes"], disk["loss"])


def test_a_device_with_its_replay_on_disk_learns_as_with_one_in_memory(
    atari_bundle: Bundle, tmp_path: Path
) -> None:
    def device(name: str, *options: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "firmware_sim.device", "--isolated", "--task", "atari"]
        command += [
            "--bundle",
            str(atari_bundle.folder),
            "--state",
            str(tmp_path / name),
            "--rounds",
            "1",
        ]
        command += ["--steps", "2", "--replay-frames", "200", "--warm-up-steps", "100", *options]
        command += ["--evaluate-every", "9"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]

    def losses(events: list[dict[str, Any]]) -> list[float]:
        return [event["loss"] for event in events if event["event"] == "trained"]

    in_memory, on_disk = device("memory"), device("disk", "--replay-on-disk")
    assert losses(in_memory) == losses(on_disk) != []
    left = {path.name for path in (tmp_path / "disk").iterdir()}
    assert left == {path.name for path in (tmp_path / "memory").iterdir()}, "its file has no name"
