"""A short study: two unequal devices learn digits over a real broker, in all three settings."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.table import Table

from toolkit.errors import Interrupted
from toolkit.experiment.cell import BATCH, SETTINGS
from toolkit.experiment.running.study import run_study
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions, plan
from toolkit.terminal import quiet_terminal
from toolkit.writing import make_folder

WEAK_FRACTIONS = (0.05, 0.2, 0.5)


def run_demo(
    out: Path, *, rounds: int, steps: int, seeds: int, embedded: bool
) -> tuple[Table, Path]:
    """Runs the study from its beginning; returns its table and the file of its figure."""
    make_folder(out)
    study = out / "study"
    shutil.rmtree(study, ignore_errors=True)
    options = SupervisedOptions(
        task="digits", rounds=rounds, examples_per_round=steps * BATCH, engine="tflite"
    )
    cells = plan(
        options,
        settings=SETTINGS,
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
        from toolkit.experiment.figures.study_tables import study_tables
        from toolkit.experiment.running.results import read_results, results_of

        results = results_of(read_results(study), SupervisedCell)
        figure, *_ = draw_figures(results, out)
    (tables,) = study_tables(results)
    return tables.for_terminal(), figure
