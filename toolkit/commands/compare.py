"""`toolkit compare`: which setting suits two networks of your own, and your data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from toolkit.commands.experiment.options import Jobs
from toolkit.experiment.presets import COMPARED_ROUNDS, COMPARED_SEEDS
from toolkit.experiment.running.study import run_study
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Example:\n\ntoolkit compare --weak my_pair.py:weak --strong my_pair.py:strong --data mine.npz"
)
MINUTE = 60.0  # seconds


def compare(
    weak: Annotated[str, typer.Option(help="Your weak network.", metavar="FILE.py:FUNCTION")],
    strong: Annotated[str, typer.Option(help="Your strong network.", metavar="FILE.py:FUNCTION")],
    data: Annotated[
        Path,
        typer.Option(help="A .npz file with x_train, y_train, x_test, y_test, or x, y."),
    ],
    weak_fraction: Annotated[
        float, typer.Option(help="The part of the data that the weak device holds.")
    ] = 0.05,
    rounds: Annotated[int, typer.Option(help="Merges.", min=1)] = COMPARED_ROUNDS,
    seeds: Annotated[
        int, typer.Option(help="Repetitions, with seeds 0, 1, …", min=3)
    ] = COMPARED_SEEDS,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results/compare"),
) -> None:
    """Run your pair alone, both alike, share-first and as a cascade; say which to use.

    Stop it at any moment, and give the same command again. Other networks or data get another
    folder below --out.
    """
    with quiet_terminal() as console, console.status("starting TensorFlow"):
        from toolkit.experiment.compare import advice, planning
        from toolkit.experiment.compare.decision import decide
        from toolkit.experiment.compare.pair import check_pair
        from toolkit.experiment.compare.results import scores_of

        pair = check_pair(weak, strong, data, weak_fraction=weak_fraction)
        options = planning.comparison_options(pair, rounds)
        cells = planning.comparison_cells(
            options,
            weak_fraction=weak_fraction,
            seeds=seeds,
            share_first=bool(pair.common),
        )
        folder = out / pair.digest[:12]
        cores = jobs or os.cpu_count() or 1
        seconds = planning.expected_seconds(cells, pair.operations, jobs=cores)
        console.print(
            f"{len(cells)} cells of {rounds} rounds, {cores} at a time: about "
            f"{max(1, round(seconds / MINUTE))} min if so many cores are free",
            highlight=False,
        )
    run_study(cells, folder, data, jobs=cores)
    scores, shown = scores_of(cells, folder)
    decision = decide(scores, shown)
    Console().print(advice.table(scores, weak_fraction, shown))
    if not pair.common:
        typer.echo("share-first is left out: the networks have no layer in common.")
    typer.echo(advice.sentences(decision, scores, shown))
    if decision.use:
        typer.echo("\n".join(advice.commands(decision.use, pair)))
