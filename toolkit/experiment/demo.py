"""A short study: two unequal devices learn digits over a real broker, in all three settings."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from toolkit.errors import Interrupted
from toolkit.experiment.cell import BATCH, HETEROGENEOUS, HOMOGENEOUS, ISOLATED
from toolkit.experiment.running.study import Beside, Link, run_study
from toolkit.experiment.supervised.cell import (
    SHARE_FIRST,
    TWO_LOSS,
    SupervisedCell,
    SupervisedOptions,
    plan,
)
from toolkit.terminal import quiet_terminal
from toolkit.writing import make_folder

WEAK_FRACTION = 0.05  # of the data, which the weak device holds
CONTROLS = (ISOLATED, HOMOGENEOUS)


def run_demo(
    out: Path, *, rounds: int, steps: int, seeds: int, embedded: bool, dashboard: str | None = None
) -> tuple[Table, Path]:
    """Runs the study from its beginning; returns its table and the file of its figure.

    A `dashboard`, at HOST:PORT, shows the first fleet of unequal devices.
    """
    make_folder(out)
    study = out / "study"
    shutil.rmtree(study, ignore_errors=True)
    options = SupervisedOptions(
        task="digits", rounds=rounds, examples_per_round=steps * BATCH, engine="tflite"
    )
    # In order of their seeds, and in each of them the controls first.
    cells = [
        cell
        for seed in range(seeds)
        for settings, topology in ((CONTROLS, SHARE_FIRST), ((HETEROGENEOUS,), TWO_LOSS))
        for cell in plan(
            options,
            settings=settings,
            topologies=[topology],
            weak_fractions=[WEAK_FRACTION],
            seeds=[seed],
        )
    ]
    try:
        link: Link = "embedded" if embedded else "mqtt"
        run_study(cells, study, None, link=link, beside=_beside(cells, dashboard))
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


def _beside(cells: Sequence[SupervisedCell], dashboard: str | None) -> Beside | None:
    if dashboard is None:
        return None
    from broker.aggregator.beside import running_dashboard
    from toolkit.experiment.running.run_cell import fleet_name

    shown = fleet_name(next(cell for cell in cells if cell.setting == HETEROGENEOUS))
    return lambda broker: running_dashboard(shown, str(broker), dashboard)
