"""`toolkit experiment atari|minatar|cartpole`: devices that learn a game."""

from __future__ import annotations

from typing import Annotated

import typer

from toolkit.commands.experiment.options import (
    ALL_SETTINGS,
    FirstSeed,
    Jobs,
    Modes,
    Mqtt,
    Out,
    Ray,
    listed,
    run_cells,
)
from toolkit.experiment.cell import Engine
from toolkit.experiment.players.cell import (
    MODES,
    SHARE_FIRST,
    SYNC_BY,
    TOPOLOGIES,
    TWO_LOSS,
    PlayerOptions,
    plan,
)
from toolkit.experiment.presets import PLAYERS, WEAK_RATES

ALL_RATES = ",".join(f"{rate:g}" for rate in WEAK_RATES)


def _defaults(what: str) -> str:
    """The defaults of every task that is played, for the help."""
    found = {task: getattr(preset, what) for task, preset in PLAYERS.items()}
    return ", ".join(f"{task} {_shown(value)}" for task, value in found.items())


def _shown(value: object) -> str:
    match value:
        case None:
            return "the branch's own"
        case (int(first), int(second)):
            return f"{first} {second}"
    return str(value)


def players(
    context: typer.Context,
    game: Annotated[
        str | None, typer.Option(help="One or several, with commas.", show_default="breakout")
    ] = None,
    modes: Modes = ALL_SETTINGS,
    topology: Annotated[
        str, typer.Option(help=f"Any of {', '.join(TOPOLOGIES)}, with commas.")
    ] = f"{SHARE_FIRST},{TWO_LOSS}",
    coordinator: Annotated[
        str, typer.Option(help=f"{' or '.join(MODES)}, or both with a comma.")
    ] = "sync",
    weak_rate: Annotated[
        str, typer.Option(help="Rates of the weak device's steps, 1 for the powerful one's.")
    ] = ALL_RATES,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Of the powerful device's game.",
            min=1,
            show_default=_defaults("steps"),
        ),
    ] = None,
    sync_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between two merges; the target network is renewed with each, and a test "
            "episode is played before it.",
            min=1,
            show_default=_defaults("sync_every"),
        ),
    ] = None,
    sync_by: Annotated[
        str, typer.Option(help=f"Whose steps --sync-every counts: {' or '.join(SYNC_BY)}.")
    ] = SYNC_BY[0],
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Repetitions, with seeds 0, 1, …", min=1, show_default=_defaults("seeds")
        ),
    ] = None,
    first_seed: FirstSeed = 0,
    learning_rate: Annotated[
        float | None, typer.Option(show_default=_defaults("learning_rate"))
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            help="Steps before the first mini-batch.", min=1, show_default=_defaults("warm_up")
        ),
    ] = None,
    exploration: Annotated[
        int | None,
        typer.Option(
            help="Steps over which ε falls.", min=1, show_default=_defaults("exploration")
        ),
    ] = None,
    replay: Annotated[
        tuple[int, int] | None,
        typer.Option(
            help="Steps remembered beside a lightweight and a complex branch.",
            metavar="STEPS STEPS",
            show_default=_defaults("replay"),
        ),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="tflite is the device's own, and faster on small branches.",
            show_default=_defaults("engine"),
        ),
    ] = None,
    mqtt: Mqtt = False,
    jobs: Jobs = None,
    ray: Ray = False,
    out: Out = None,
) -> None:
    """Two devices learn a game, which the weak one plays more slowly (section 4.2).

    A cell is a game × mode × topology × coordinator × rate × seed. A cell that was killed
    starts from its beginning; finished ones stay.
    """
    task = str(context.info_name)
    preset = PLAYERS[task]
    warm, every = warm_up or preset.warm_up, sync_every or preset.sync_every
    options = PlayerOptions(
        task=task,
        rounds=max(1, ((steps or preset.steps) - warm) // every),
        steps_per_round=every,
        warm_up=warm,
        exploration=exploration or preset.exploration,
        replay=replay or preset.replay,
        test_steps=preset.test_steps,
        learning_rate=preset.learning_rate if learning_rate is None else learning_rate,
        engine=engine or preset.engine,
        sync_by=sync_by,
    )
    cells = plan(
        options,
        games=listed(game or preset.game, str, "game"),
        settings=listed(modes, str, "mode"),
        topologies=listed(topology, str, "topology"),
        modes=listed(coordinator, str, "coordinator"),
        weak_rates=listed(weak_rate, float, "rate"),
        seeds=range(first_seed, first_seed + (seeds or preset.seeds)),
    )
    run_cells(cells, out, None, mqtt=mqtt, jobs=jobs, ray=ray)
