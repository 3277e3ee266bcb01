"""`toolkit play`: one episode of what a device has learnt, as a moving picture."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from toolkit.errors import ToolkitError
from toolkit.terminal import quiet_terminal

if TYPE_CHECKING:
    from PIL.Image import Image

    from firmware_sim.bundle.reader import Bundle
    from firmware_sim.playing.environments import Environment
    from firmware_sim.tensor_spec import Array
    from firmware_sim.training.runtime import Model

PLAY_EXAMPLES = (
    "Examples:\n\n"
    "toolkit play build/minatar --state state/pi-1\n\n"
    "toolkit play build/weak --state state/pi-1 --game space_invaders --out invaders.mp4"
)
PICTURES_PER_SECOND = 15  # an action lasts four frames of Atari's 60 per second
HEIGHT = 320  # pixels; smaller games are scaled up by a whole number to about that
BAR = 20  # pixels above the game, for the score
_ZOO = re.compile(r"(atari|minatar|cartpole)-(?:lightweight|complex)(?:-(.*))?")
Save = Callable[[Iterator["Image"], Path], None]


@dataclass
class Episode:
    """How far a game is."""

    score: float = 0.0
    steps: int = 0


def play(
    bundle: Annotated[Path, typer.Argument(help="Folder that `toolkit export` wrote.")],
    state: Annotated[Path, typer.Option(help="Folder with the device's checkpoint.")],
    game: Annotated[
        str | None,
        typer.Option(help="As the device was given.", show_default="the branch's, or breakout"),
    ] = None,
    out: Annotated[Path, typer.Option(help=".gif, or .mp4 where ffmpeg is installed.")] = Path(
        "episode.gif"
    ),
    epsilon: Annotated[
        float, typer.Option(help="Part of the actions that are random.", min=0.0, max=1.0)
    ] = 0.02,
    seed: Annotated[int, typer.Option(help="Of the game and of random actions.", min=0)] = 0,
) -> None:
    """Play one episode with the weights that a device has trained, and draw it."""
    from firmware_sim.bundle.reader import open_bundle
    from firmware_sim.training.runtime import Model, runtime_for
    from toolkit.trained.weights import read_weights

    save = writer_for(out)
    opened = open_bundle(bundle)
    weights = read_weights(opened, state)
    episode = Episode()
    with quiet_terminal():
        model = Model(opened.model, runtime=runtime_for(opened))
        model.call("set_state", **weights.state)
        with closing(game_for(opened, model, game)) as environment:
            save(pictures(model, environment, episode, epsilon=epsilon, seed=seed), out)
    typer.echo(f"{episode.score:g} points in {episode.steps} steps; the picture is in {out}")


def game_for(bundle: Bundle, model: Model, game: str | None) -> Environment:
    """The game that is asked for, or that the branch was made for, if they fit."""
    from firmware_sim.errors import TaskError
    from firmware_sim.playing.dqn import outputs_for
    from firmware_sim.playing.environments import make_environment
    from firmware_sim.playing.options import usual_options
    from firmware_sim.playing.player import check_observation, game_of

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
) -> Iterator[Image]:
    """One before the first step and one after each; `episode` counts on the way."""
    from firmware_sim.playing.dqn import choose

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


def picture(screen: Array, score: float) -> Image:
    """The screen, scaled up if it is small, below a bar with the score."""
    from PIL import Image, ImageDraw

    factor = max(1, HEIGHT // screen.shape[0])
    large = screen.repeat(factor, axis=0).repeat(factor, axis=1)
    high, wide = (size - size % 2 for size in large.shape[:2])  # videos need even numbers
    drawn = Image.new("RGB", (wide, high + BAR))
    drawn.paste(Image.fromarray(large[:high, :wide]), (0, BAR))
    ImageDraw.Draw(drawn).text((4, 4), f"score {score:g}", fill="white")
    return drawn


def writer_for(out: Path) -> Save:
    """How a file of that name is written; checked before anything is played."""
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


def _save_gif(drawn: Iterator[Image], out: Path) -> None:
    first = next(drawn)
    duration = 1000 // PICTURES_PER_SECOND  # milliseconds
    first.save(out, save_all=True, append_images=drawn, duration=duration, loop=0)


def _save_mp4(drawn: Iterator[Image], out: Path) -> None:
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
            pass  # what it has to say is read below
        said = ffmpeg.stderr.read().decode(errors="replace").strip().splitlines()
    if ffmpeg.returncode:
        raise ToolkitError(f"ffmpeg cannot write {out} ({(said or ['no message'])[-1]}).")
