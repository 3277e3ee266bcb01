"""The study in short: two unequal devices learn digits over a real broker, in three modes."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer
from rich.console import Console

from toolkit.errors import Interrupted
from toolkit.experiment.cell import BATCH, MODES
from toolkit.experiment.running.study import run_study
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedSettings, plan
from toolkit.terminal import quiet_terminal
from toolkit.writing import make_folder

WEAK_FRACTIONS = (0.05, 0.2, 0.5)


def run_demo(out: Path, *, rounds: int, steps: int, seeds: int, embedded: bool) -> None:
    """Runs the study anew, draws its figure, and shows its table."""
    make_folder(out)
    study = out / "study"
    shutil.rmtree(study, ignore_errors=True)
    settings = SupervisedSettings(
        task="digits", rounds=rounds, examples_per_round=steps * BATCH, engine="tflite"
    )
    cells = plan(
        settings,
        modes=MODES,
        topologies=["cascading"],
        weak_fractions=WEAK_FRACTIONS,
        seeds=range(seeds),
    )
    try:
        run_study(cells, study, None, link="embedded" if embedded else "mqtt")
    except Interrupted:
        raise Interrupted(f"all processes are stopped; {out} keeps what they had") from None
    with quiet_terminal():
        from toolkit.experiment.figures.draw import draw_figures
        from toolkit.experiment.figures.supervised_table import terminal_table
        from toolkit.experiment.running.results import of_kind, read_results

        results = of_kind(read_results(study), SupervisedCell)
        figure, *_ = draw_figures(results, out)
    title = f"Digits: test accuracy (%) after {rounds} rounds of {steps} mini-batches"
    Console().print(terminal_table(results, title))
    typer.echo(f"the picture is in {figure}")
