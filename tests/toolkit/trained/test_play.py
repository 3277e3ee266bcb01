"""`toolkit play`: an episode of what a device has learnt, as a file that shows it."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from toolkit.trained.play import BAR, picture

pytestmark = pytest.mark.xdist_group("experiment")
Toolkit = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle for MinAtar's Breakout, and the state of a device that has trained a little."""
    import keras

    from tests.harness.quick_bundles import quick_bundle
    from toolkit import zoo

    folder = tmp_path_factory.mktemp("play")
    keras.utils.set_random_seed(0)
    branch = zoo.build("minatar", "lightweight", game="breakout")
    quick_bundle(branch, "gateway", folder / "bundle")
    command = [sys.executable, "-m", "firmware_sim.device", "--isolated", "--task", "minatar"]
    command += ["--bundle", str(folder / "bundle"), "--state", str(folder / "state")]
    command += ["--rounds", "1", "--steps", "3", "--warm-up-steps", "40", "--replay-frames", "200"]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    return folder / "bundle", folder / "state"


def test_an_episode_is_a_moving_picture(
    toolkit: Toolkit, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle, state = trained
    out = tmp_path / "episode.gif"
    ran = toolkit("play", bundle, "--state", state, "--out", out, "--seed", "3", "--epsilon", "1")
    assert (ran.code, ran.err) == (0, "")
    points, _, _, steps, *_ = ran.out.split()
    assert ran.out == f"{points} points in {steps} steps; the picture is in {out}\n"
    with Image.open(out) as film:
        assert film.format == "GIF"
        assert film.size == (320, 320 + BAR)  # ten rows, 32 times as large
        frames = sum(1 for _ in ImageSequence.Iterator(film))
        assert 2 <= frames <= 1 + int(steps)  # equal pictures are one that lasts longer
    again = tmp_path / "again.gif"
    toolkit("play", bundle, "--state", state, "--out", again, "--seed", "3", "--epsilon", "1")
    assert again.read_bytes() == out.read_bytes()
    other = toolkit("play", bundle, "--state", state, "--out", again, "--seed", "4")
    assert other.code == 0
    assert again.read_bytes() != out.read_bytes()


def test_a_picture_is_scaled_by_a_whole_number_below_its_score() -> None:
    screen = np.zeros((84, 83, 3), np.uint8)
    screen[0, 0] = 255
    drawn = np.asarray(picture(screen, 7.0))
    assert drawn.shape == (3 * 84 + BAR, 3 * 83 - 1, 3)  # even numbers
    assert (drawn[BAR : BAR + 3, :3] == 255).all() and not drawn[BAR + 3 :, 3:].any()
    assert drawn[:BAR].any()
    assert (np.asarray(picture(screen, 8.0))[:BAR] != drawn[:BAR]).any()
    assert picture(np.zeros((400, 600, 3), np.uint8), 0.0).size == (600, 400 + BAR)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--out", "episode.avi"), "episode.avi is neither a .gif nor an .mp4."),
        (("--out", "nowhere/episode.gif"), "there is no folder nowhere."),
        (("--game", "go"), "there is no MinAtar game 'go'; there are asterix, breakout, freeway, "
         "seaquest, space_invaders."),
        (("--game", "freeway"), "the game 'minatar/freeway' shows uint8[10, 10, 7]; the bundle at "
         "BUNDLE takes uint8[10, 10, 4]."),
        (("--state", "nowhere"), "there is no checkpoint in nowhere; a device's --state folder has "
         "one."),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_one_sentence(
    toolkit: Toolkit,
    trained: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle, state = trained
    said = toolkit("play", bundle, "--state", state, *options).refusal
    assert said == sentence.replace("BUNDLE", str(bundle))
    assert not list(tmp_path.iterdir())


def test_a_video_needs_ffmpeg(
    toolkit: Toolkit, trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, state = trained
    out = tmp_path / "episode.mp4"
    if shutil.which("ffmpeg") is None:
        said = toolkit("play", bundle, "--state", state, "--out", out).refusal
        assert said == "an .mp4 is written by ffmpeg, which is not installed; give --out as .gif."
    # One that takes what it is given, as a shell script: the size and the pictures are right.
    fake = tmp_path / "bin" / "ffmpeg"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor last; do :; done\necho "$@" > "$last"\nwc -c >> "$last"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    ran = toolkit("play", bundle, "--state", state, "--out", out, "--epsilon", "1")
    assert ran.code == 0, ran.err
    steps = int(ran.out.split()[3])
    command, count = out.read_text().splitlines()
    assert "-s 320x340" in command
    assert int(count) == 320 * 340 * 3 * (1 + steps)
