"""`toolkit experiment TASK` and `toolkit figures`: studies, and the pictures of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import SETTINGS, Cell
from toolkit.experiment.players import cell as player_cell
from toolkit.experiment.players.cell import MODES, PlayerOptions
from toolkit.experiment.presets import CURVE_POINTS, PLAYERS, SUPERVISED, WEAK_RATES
from toolkit.experiment.running.study import run_study
from toolkit.experiment.supervised import cell as supervised_cell
from toolkit.experiment.supervised.cell import TOPOLOGIES, SupervisedOptions
from toolkit.experiment.supervised.download import DATA
from toolkit.terminal import quiet_terminal

T = TypeVar("T")


class Engine(StrEnum):
    tf = "tf"
    tflite = "tflite"


class BranchDropout(StrEnum):
    on = "on"
    off = "off"
    both = "both"


experiment = typer.Typer(
    help="Compare devices that learn alone, all alike, and each as it can (the paper's section 4)."
    "\n\nEvery cell of a study runs the real agents, aggregator and wire format. Stop it at any "
    "moment, and give the same command again.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Examples:\n\n"
    "toolkit experiment digits   (a few minutes, then `toolkit figures results/digits`)\n\n"
    "toolkit experiment cifar10 --rounds 200 --seeds 3 --weak-fraction 0.05,0.2,0.5\n\n"
    "toolkit experiment cifar10 --modes heterogeneous --topology cascading "
    "--branch-dropout both\n\n"
    "toolkit experiment npz --data my.npz --split dirichlet:0.5 --engine tflite\n\n"
    "toolkit experiment cartpole --weak-rate 1   (a few minutes)\n\n"
    "toolkit experiment minatar --game breakout,asterix --coordinator sync,async",
)
FIGURES_EXAMPLES = "Example:\n\ntoolkit figures results/digits --out docs"

Modes = Annotated[str, typer.Option(help="Any of these, with commas.")]
LearningRate = Annotated[float | None, typer.Option(show_default="the branch's own")]
Mqtt = Annotated[bool, typer.Option("--mqtt", help="Over a real broker instead of one in memory.")]
Jobs = Annotated[int | None, typer.Option(help="Cells at a time.", min=1, show_default="cores")]
Ray = Annotated[bool, typer.Option("--ray", help="Run cells on a Ray cluster.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the results.", show_default="results/<task>")
]
ALL_SETTINGS = ",".join(SETTINGS)
ALL_RATES = ",".join(f"{rate:g}" for rate in WEAK_RATES)


def _defaults(what: str) -> str:
    """Returns the default of every task of players."""
    found = {task: getattr(preset, what) for task, preset in PLAYERS.items()}
    return ", ".join(f"{task} {_shown(value)}" for task, value in found.items())


def _shown(value: object) -> str:
    match value:
        case None:
            return "the branch's own"
        case (int(first), int(second)):
            return f"{first} {second}"
    return str(value)


def supervised(
    context: typer.Context,
    modes: Modes = ALL_SETTINGS,
    topology: Annotated[str, typer.Option(help="One or both, with a comma.")] = ",".join(
        TOPOLOGIES
    ),
    weak_fraction: Annotated[
        str | None,
        typer.Option(
            help="Parts of the data that the weak device holds, with commas.",
            show_default="digits 0.05,0.2,0.5; else 0.05,0.1,0.2,0.3,0.4,0.5",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Merges.", min=1, show_default="digits 15, npz 200, cifar10 4000"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Repetitions, with seeds 0, 1, …", min=1, show_default="3; cifar10 5"),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            help="That each device trains on in a round.", min=1, show_default="2000; digits 640"
        ),
    ] = None,
    learning_rate: LearningRate = None,
    branch_dropout: Annotated[
        BranchDropout, typer.Option(help="In cascades; `both` is the ablation.")
    ] = BranchDropout.on,
    split: Annotated[
        str, typer.Option(help="iid, or dirichlet:ALPHA: the smaller, the more unequal.")
    ] = "iid",
    validate_on: Annotated[
        int | None,
        typer.Option(
            help="At most so many of a device's validation examples, for speed.",
            min=1,
            show_default="all",
        ),
    ] = None,
    test_every: Annotated[
        int | None,
        typer.Option(
            help="Rounds between two points of a test curve.",
            min=1,
            show_default=f"{CURVE_POINTS} points",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="cifar10: the archive or its folder; npz: a file with x_train, y_train, x_test, "
            "y_test, or with images and labels.",
            show_default=f"cifar10: downloaded to {DATA}",
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="tflite is the device's own; tf gives the same, faster.")
    ] = Engine.tf,
    mqtt: Mqtt = False,
    jobs: Jobs = None,
    ray: Ray = False,
    out: Out = None,
) -> None:
    """Two devices learn to tell images apart, of which the weak one holds few (section 4.3).

    A cell is a mode × topology × fraction × seed. One that was killed goes on where it was, and
    ends with the same numbers.
    """
    task = str(context.info_name)
    preset = SUPERVISED[task]
    total = rounds or preset.rounds
    options = SupervisedOptions(
        task=task,
        rounds=total,
        examples_per_round=examples or preset.examples_per_round,
        learning_rate=learning_rate,
        engine=engine.value,
        split=split,
        validate_on=validate_on,
        test_every=test_every or max(1, total // CURVE_POINTS),
    )
    cells = supervised_cell.plan(
        options,
        settings=_listed(modes, str, "mode"),
        topologies=_listed(topology, str, "topology"),
        weak_fractions=_listed(weak_fraction, float, "fraction")
        if weak_fraction
        else preset.weak_fractions,
        seeds=range(seeds or preset.seeds),
        branch_dropout={"on": (True,), "off": (False,), "both": (True, False)}[branch_dropout],
    )
    _run(cells, out, data, mqtt=mqtt, jobs=jobs, ray=ray)


def players(
    context: typer.Context,
    game: Annotated[
        str | None, typer.Option(help="One or several, with commas.", show_default="breakout")
    ] = None,
    modes: Modes = ALL_SETTINGS,
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
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Repetitions, with seeds 0, 1, …", min=1, show_default=_defaults("seeds")
        ),
    ] = None,
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

    A cell is a game × mode × coordinator × rate × seed. A cell that was killed starts from its
    beginning; finished ones stay.
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
        engine=engine.value if engine else preset.engine,
    )
    cells = player_cell.plan(
        options,
        games=_listed(game or preset.game, str, "game"),
        settings=_listed(modes, str, "mode"),
        modes=_listed(coordinator, str, "coordinator"),
        weak_rates=_listed(weak_rate, float, "rate"),
        seeds=range(seeds or preset.seeds),
    )
    _run(cells, out, None, mqtt=mqtt, jobs=jobs, ray=ray)


for _task in supervised_cell.TASKS:
    experiment.command(_task)(supervised)
for _task in player_cell.TASKS:
    experiment.command(_task)(players)


def _run(
    cells: Sequence[Cell],
    out: Path | None,
    data: Path | None,
    *,
    mqtt: bool,
    jobs: int | None,
    ray: bool,
) -> None:
    folder = out or Path("results") / cells[0].options.task
    run_study(cells, folder, data, link="mqtt" if mqtt else "memory", jobs=jobs, ray=ray)
    typer.echo(f"{len(cells)} cells are in {folder}; `toolkit figures {folder}` draws them")


def figures(
    results: Annotated[Path, typer.Argument(help="Folder that `toolkit experiment` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Where pictures go.", show_default="beside the results")
    ] = None,
) -> None:
    """Draw the paper's figure of a study as PNG and SVG, with a table in Markdown."""
    with quiet_terminal():
        from toolkit.experiment.figures.draw import draw_figures
        from toolkit.experiment.running.results import read_results
        from toolkit.writing import make_folder

        folder = out or results
        found = read_results(results)
        make_folder(folder)
        written = draw_figures(found, folder)
    typer.echo("\n".join(map(str, written)))


def _listed(text: str, kind: Callable[[str], T], what: str) -> list[T]:
    """What a user writes with commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return [kind(part) for part in dict.fromkeys(parts)]
    except ValueError:
        raise ExperimentError(f"{text!r} does not list {what}s, as 0.05,0.5 does.") from None
