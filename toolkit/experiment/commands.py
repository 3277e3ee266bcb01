"""`toolkit experiment` and `toolkit figures`: the study, and the pictures of its results."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from toolkit.experiment.cell import MODES, TOPOLOGIES, ExperimentError, Settings, plan
from toolkit.experiment.presets import CURVE_POINTS, PRESETS
from toolkit.experiment.study import DATA, run_study
from toolkit.terminal import quiet_terminal

T = TypeVar("T")


class StudyTask(StrEnum):
    digits = "digits"
    cifar10 = "cifar10"
    npz = "npz"


class Engine(StrEnum):
    tf = "tf"
    tflite = "tflite"


class BranchDropout(StrEnum):
    on = "on"
    off = "off"
    both = "both"


EXPERIMENT_EXAMPLES = (
    "Examples:\n\n"
    "toolkit experiment digits   (a few minutes, then `toolkit figures results/digits`)\n\n"
    "toolkit experiment cifar10 --rounds 200 --seeds 3 --weak-fraction 0.05,0.2,0.5\n\n"
    "toolkit experiment cifar10 --modes heterogeneous --topology cascading "
    "--branch-dropout both\n\n"
    "toolkit experiment npz --data my.npz --split dirichlet:0.5 --engine tflite"
)
FIGURES_EXAMPLES = "Example:\n\ntoolkit figures results/digits --out docs"


def experiment(
    task: Annotated[StudyTask, typer.Argument(help="What the devices learn.")],
    modes: Annotated[str, typer.Option(help="Any of these, with commas.")] = ",".join(MODES),
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
    learning_rate: Annotated[
        float | None, typer.Option(show_default="the branch's own: 0.0001, digits 0.001")
    ] = None,
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
    mqtt: Annotated[
        bool, typer.Option("--mqtt", help="Over a real broker instead of one in memory.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Cells at a time.", min=1, show_default="cores")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run cells on a Ray cluster.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="results/<task>")
    ] = None,
) -> None:
    """Compare devices that learn alone, all alike, and each as it can (the paper's section 4.3).

    Every cell (mode × topology × fraction × seed) runs the real agents, aggregator and wire format.
    Stop it at any moment: the same command goes on where it was, and ends with the same numbers.
    """
    preset = PRESETS[task.value]
    total = rounds or preset.rounds
    settings = Settings(
        task=task.value,
        rounds=total,
        examples_per_round=examples or preset.examples_per_round,
        learning_rate=learning_rate,
        engine=engine.value,
        split=split,
        validate_on=validate_on,
        test_every=test_every or max(1, total // CURVE_POINTS),
    )
    cells = plan(
        settings,
        modes=_listed(modes, str, "mode"),
        topologies=_listed(topology, str, "topology"),
        weak_fractions=_listed(weak_fraction, float, "fraction")
        if weak_fraction
        else preset.weak_fractions,
        seeds=range(seeds or preset.seeds),
        branch_dropout={"on": (True,), "off": (False,), "both": (True, False)}[branch_dropout],
    )
    folder = out or Path("results") / task.value
    run_study(cells, folder, data, link="mqtt" if mqtt else "memory", jobs=jobs, ray=ray)
    typer.echo(f"{len(cells)} cells are in {folder}; `toolkit figures {folder}` draws them")


def figures(
    results: Annotated[Path, typer.Argument(help="Folder that `toolkit experiment` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Where pictures go.", show_default="beside the results")
    ] = None,
) -> None:
    """Draw the paper's figure of supervised learning as PNG and SVG, with a table in Markdown."""
    with quiet_terminal():
        from toolkit.experiment.figures import draw_figures
        from toolkit.experiment.results import read_results
        from toolkit.export.writing import make_folder

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
