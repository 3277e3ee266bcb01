"""`toolkit play`: one episode of what a device has learnt, as a moving picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import BundleFolder, StateFolder
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Examples:\n\n"
    "toolkit play build/minatar --state state/pi-1\n\n"
    "toolkit play build/weak --state state/pi-1 --game space_invaders --out invaders.mp4"
)


def play(
    bundle: BundleFolder,
    state: StateFolder,
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
    from toolkit.trained.play import play_episode

    with quiet_terminal():
        episode = play_episode(bundle, state, game=game, out=out, epsilon=epsilon, seed=seed)
    typer.echo(f"{episode.score:g} points in {episode.steps} steps; the picture is in {out}")
