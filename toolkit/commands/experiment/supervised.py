"""`toolkit experiment digits|cifar10|npz`: devices that learn from labelled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from toolkit.commands.experiment.options import (
    ALL_SETTINGS,
    FirstSeed,
    Jobs,
    LearningRate,
    Modes,
    Mqtt,
    Out,
    Ray,
    listed,
    run_cells,
)
from toolkit.experiment.cell import Engine
from toolkit.experiment.presets import CURVE_POINTS, SUPERVISED
from toolkit.experiment.supervised.cell import TOPOLOGIES, SupervisedOptions, plan
from toolkit.experiment.supervised.download import DATA


def supervised(
    context: typer.Context,
    modes: Modes = ALL_SETTINGS,
    topology: Annotated[str, typer.Option(help="Any of these, with commas.")] = ",".join(
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
    first_seed: FirstSeed = 0,
    merge: Annotated[
        Literal["samples", "mean"], typer.Option(help="The weights of the updates.")
    ] = "samples",
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="The coordinator's, as momentum:0.5 or adam:0.001.",
            show_default="changes are added",
        ),
    ] = None,
    weak_model: Annotated[
        str | None,
        typer.Option("--weak", help="npz: your own weak network.", metavar="FILE.py:FUNCTION"),
    ] = None,
    strong_model: Annotated[
        str | None,
        typer.Option("--strong", help="npz: your own strong network.", metavar="FILE.py:FUNCTION"),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            help="That each device trains on in a round.", min=1, show_default="2000; digits 640"
        ),
    ] = None,
    learning_rate: LearningRate = None,
    branch_dropout: Annotated[
        Literal["on", "off", "both"], typer.Option(help="In cascades; `both` is the ablation.")
    ] = "on",
    split: Annotated[
        str, typer.Option(help="iid, or dirichlet:ALPHA: the smaller, the more unequal.")
    ] = "iid",
    validate_on: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of a device's validation examples, for speed.",
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
    ] = "tf",
    mqtt: Mqtt = False,
    jobs: Jobs = None,
    ray: Ray = False,
    out: Out = None,
) -> None:
    """Two devices learn to classify images; the weak one holds few of them (section 4.3).

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
        engine=engine,
        split=split,
        validate_on=validate_on,
        test_every=test_every or max(1, total // CURVE_POINTS),
        weak_model=weak_model,
        strong_model=strong_model,
        merge=merge,
        optimizer=optimizer,
    )
    cells = plan(
        options,
        settings=listed(modes, str, "mode"),
        topologies=listed(topology, str, "topology"),
        weak_fractions=listed(weak_fraction, float, "fraction")
        if weak_fraction
        else preset.weak_fractions,
        seeds=range(first_seed, first_seed + (seeds or preset.seeds)),
        branch_dropout={"on": (True,), "off": (False,), "both": (True, False)}[branch_dropout],
    )
    run_cells(cells, out, data, mqtt=mqtt, jobs=jobs, ray=ray)
