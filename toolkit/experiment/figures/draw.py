"""Draws all figures and tables that the results of a study allow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.figures.drawing import save
from toolkit.experiment.figures.players_figure import draw_players
from toolkit.experiment.figures.players_summary import modes, of_mode
from toolkit.experiment.figures.study_tables import study_tables
from toolkit.experiment.figures.supervised_figure import draw_study
from toolkit.experiment.players.cell import PlayerCell
from toolkit.experiment.running.results import Result, results_of
from toolkit.experiment.supervised.cell import SupervisedCell

STUDY, TABLE = "supervised", "table.md"
PLAYERS = {"sync": "rl", "async": "rl_async"}  # file names, by mode


def draw_figures(results: Sequence[Result[Cell]], folder: Path) -> list[Path]:
    """Returns the files that it has written."""
    if not results:
        raise ExperimentError("no cell is finished yet, so there is nothing to draw.")
    written: list[Path] = []
    if supervised := results_of(results, SupervisedCell):
        written += save(draw_study(supervised), folder / STUDY)
    if players := results_of(results, PlayerCell):
        for mode in modes(players):
            written += save(draw_players(of_mode(mode, players), mode), folder / PLAYERS[mode])
    table = folder / TABLE
    tables = (tables.markdown() for tables in study_tables(results))
    table.write_text("\n".join(tables), encoding="utf-8")
    return [*written, table]
