"""A device's state folder: `--check` touches nothing, `--salvage` puts what is damaged aside."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.__main__ import main
from firmware_sim.device.check import LOST
from firmware_sim.training.checkpoint import FILE, Checkpoint, Checkpoints, claim_state

Listing = Callable[[Path], dict[str, bytes]]
Command = Callable[..., list[str]]


def save(folder: Path, device: str = "pi-1") -> Path:
    learner = {"model/kernel": np.arange(8, dtype=np.float32)}
    ours = Checkpoints(folder, device=device, bundle="b")
    ours.save(Checkpoint(run="run-1", round=4, steps_done=7, learner=learner))
    return folder / FILE


def flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 8
    path.write_bytes(data)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """`python -m firmware_sim.device OPTION --state FOLDER` in this process; returns the lines."""

    def run(option: str, code: int = 0, folder: Path = tmp_path) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main([option, "--state", str(folder)])
        said = capsys.readouterr()
        assert ended.value.code == code, said
        return (said.out or said.err).splitlines()

    return run


def test_what_is_whole_is_described_and_left_alone(
    tmp_path: Path, command: Command, listing: Listing
) -> None:
    paths = [save(tmp_path), save(tmp_path / "model-0123", "pi-2")]
    before = listing(tmp_path)
    assert command("--check") == [
        f"{path}: whole; device {device}, run run-1, round 4, 7 steps done"
        for path, device in zip(paths, ("pi-1", "pi-2"), strict=True)
    ]
    assert command("--salvage") == [f"{tmp_path}: nothing to salvage; no checkpoint is damaged"]
    assert listing(tmp_path) == before


@pytest.mark.parametrize("below", ["", "model-0123"])
def test_a_damaged_checkpoint_is_put_aside(
    tmp_path: Path, command: Command, listing: Listing, below: str
) -> None:
    folder = tmp_path / below
    path = save(folder)
    flip(path, -3)
    damaged, before = path.read_bytes(), listing(tmp_path)
    said = f"{path} cannot be read: it is damaged, for its checksum differs."
    assert command("--check", code=1) == [said]
    assert listing(tmp_path) == before
    aside = folder / "damaged-1" / FILE
    assert command("--salvage") == [
        said,
        f"lost: {LOST}",
        f"kept aside: {aside}",
        "the device starts from its bundle and takes θ_shared from the fleet",
    ]
    assert aside.read_bytes() == damaged
    assert Checkpoints(folder, device="pi-1", bundle="b").load() is None
    assert command("--check") == [f"{tmp_path}: whole; empty, and a device starts from its bundle"]
    flip(save(folder), -3)
    command("--salvage")
    assert (folder / "damaged-2" / FILE).exists(), "the first one is kept"
    assert aside.read_bytes() == damaged


def test_a_folder_in_use_or_missing_is_one_sentence(tmp_path: Path, command: Command) -> None:
    save(tmp_path)
    with claim_state(tmp_path):
        for option in ("--check", "--salvage"):
            assert command(option, code=1) == [f"error: another device is using {tmp_path}."]
    missing = tmp_path / "none"
    [said] = command("--check", code=1, folder=missing)
    assert said == f"error: {missing} cannot be read (No such file or directory)."


def test_a_folder_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--check"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "--check, --salvage and the options of the store need --state\n"
    )


def test_after_salvage_the_same_command_goes_on(
    tmp_path: Path, command: Command, digits_bundle: Bundle
) -> None:
    """The program itself: it refuses the damaged checkpoint, and then starts from its bundle."""
    options = ["--bundle", digits_bundle.folder, "--task", "digits", "--share", "0:0.1"]
    alone = [*options, "--isolated", "--steps", "2", "--rounds", "1", "--state", tmp_path]
    line = [sys.executable, "-m", "firmware_sim.device", *map(str, alone)]

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)

    first = start()
    assert first.returncode == 0, first.stderr
    path = tmp_path / FILE
    saved = path.read_bytes()
    flip(path, -3)
    damaged = path.read_bytes()
    refused = start()
    said = f"error: {path} cannot be read: it is damaged, for its checksum differs."
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (1, said)
    assert path.read_bytes() == damaged
    command("--salvage")
    again = start()
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout, "the same steps from the same weights"
    assert path.read_bytes() == saved
