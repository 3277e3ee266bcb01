"""One episode of what a device has learnt, as a moving picture."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np
from PIL import Image, ImageDraw

from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.errors import TaskError
from firmware_sim.playing.dqn import choose, outputs_for
from firmware_sim.playing.environments import Environment, make_environment
from firmware_sim.playing.options import usual_options
from firmware_sim.playing.player import check_observation, game_of
from firmware_sim.tensor_spec import Array
from firmware_sim.training.prefixed import open_model
from firmware_sim.training.runtime import Model, runtime_for
from profiles.profile import BranchKind
from toolkit import zoo
from toolkit.errors import ToolkitError
from toolkit.trained.weights import read_weights

PICTURES_PER_SECOND = 15  # an action lasts four frames of Atari's 60 per second
HEIGHT = 320  # pixels; smaller games are scaled up by a whole number to about that
BAR = 20  # pixels above the game, for the score
# The name of one of the zoo's branches: its task and, for MinAtar, its game.
_ZOO = re.compile(
    rf"({'|'.join(get_args(zoo.PlayedTask))})-(?:{'|'.join(get_args(BranchKind))})(?:-(.*))?"
)
Save = Callable[[Iterator[Image.Image], Path], None]


@dataclass
class Episode:
    """The score and the number of steps so far."""

    score: float = 0.0
    steps: int = 0


def play_episode(
    folder: Path, state: Path, *, game: str | None, out: Path, epsilon: float, seed: int
) -> Episode:
    """Plays one episode with the weights of a device's checkpoint, and draws it into `out`."""
    save = writer_for(out)
    bundle = open_bundle(folder)
    weights = read_weights(bundle, state)
    episode = Episode()
    model = open_model(bundle, runtime=runtime_for(bundle))
    model.call("set_state", **weights.state)
    with closing(game_for(bundle, model, game)) as environment:
        save(pictures(model, environment, episode, epsilon=epsilon, seed=seed), out)
    return episode


def game_for(bundle: Bundle, model: Model, game: str | None) -> Environment:
    """The game that is asked for, else that of the branch; raises if it does not fit the bundle."""
    known = _ZOO.fullmatch(bundle.manifest.branch.name)
    if known is not None:
        name = game_of(known[1], game or (known[2] and known[2].replace("-", "_")))
    elif game is not None:
        name = game
    else:
        raise ToolkitError(f"the branch of {bundle.folder} is not the zoo's; say --game NAME.")
    found = make_environment(name, usual_options(name).test_steps, rendered=True)
    try:
        check_observation(name, found, model.inputs("infer")["x"].of_one, bundle)
        outputs_for(model, found, name)
    except TaskError:
        found.close()
        raise
    return found


def pictures(
    model: Model, environment: Environment, episode: Episode, *, epsilon: float, seed: int
) -> Iterator[Image.Image]:
    """Yields a picture before the first step and one after each; `episode` is updated meanwhile."""
    rng = np.random.default_rng(seed)
    obs, ended = environment.reset(seed), False
    outputs = int(model.call("infer", x=obs[None])["output"].shape[-1])
    yield picture(environment.render(), episode.score)
    while not ended:
        seen = environment.step(choose(model, obs, epsilon, outputs, rng))
        obs, ended = seen.obs, seen.ended
        episode.score += seen.reward
        episode.steps += 1
        yield picture(environment.render(), episode.score)


def picture(screen: Array, score: float) -> Image.Image:
    """The screen, scaled up if it is small, below a bar with the score."""
    factor = max(1, HEIGHT // screen.shape[0])
    large = screen.repeat(factor, axis=0).repeat(factor, axis=1)
    high, wide = (size - size % 2 for size in large.shape[:2])  # videos need even numbers
    drawn = Image.new("RGB", (wide, high + BAR))
    drawn.paste(Image.fromarray(large[:high, :wide]), (0, BAR))
    ImageDraw.Draw(drawn).text((4, 4), f"score {score:g}", fill="white")
    return drawn


def writer_for(out: Path) -> Save:
    """Returns what writes a file of that name; raises before anything is played."""
    if not out.parent.is_dir():
        raise ToolkitError(f"there is no folder {out.parent}.")
    match out.suffix:
        case ".gif":
            return _save_gif
        case ".mp4":
            if shutil.which("ffmpeg") is None:
                raise ToolkitError(
                    "an .mp4 is written by ffmpeg, which is not installed; give --out as .gif."
                )
            return _save_mp4
    raise ToolkitError(f"{out} is neither a .gif nor an .mp4.")


def _save_gif(drawn: Iterator[Image.Image], out: Path) -> None:
    first = next(drawn)
    duration = 1000 // PICTURES_PER_SECOND  # milliseconds
    first.save(out, save_all=True, append_images=drawn, duration=duration, loop=0)


def _save_mp4(drawn: Iterator[Image.Image], out: Path) -> None:
    first = next(drawn)
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{first.width}x{first.height}", "-r", str(PICTURES_PER_SECOND), "-i", "-"]
    command += ["-pix_fmt", "yuv420p", str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdin is not None and ffmpeg.stderr is not None
        try:
            for one in chain([first], drawn):
                ffmpeg.stdin.write(one.tobytes())
            ffmpeg.stdin.close()
        except BrokenPipeError:
            pass  # its message is read below
        said = ffmpeg.stderr.read().decode(errors="replace").strip().splitlines()
    if ffmpeg.returncode:
        raise ToolkitError(f"ffmpeg cannot write {out} ({(said or ['no message'])[-1]}).")
