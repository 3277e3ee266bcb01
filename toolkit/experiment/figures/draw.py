"""Every picture and table that results allow; everything comes from results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import Cell
from toolkit.experiment.figures.drawing import save
from toolkit.experiment.figures.players_figure import draw_players
from toolkit.experiment.figures.players_summary import coordinators, merged_by
from toolkit.experiment.figures.supervised_figure import draw_ablation, draw_study
from toolkit.experiment.figures.supervised_table import has_ablation
from toolkit.experiment.figures.table import markdown
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.running.results import Result, of_kind
from toolkit.experiment.supervised.cell import SupervisedCell

STUDY, ABLATION, TABLE = "supervised", "branch_dropout", "table.md"
PLAYERS = {"sync": "rl", "async": "rl_async"}


def draw_figures(results: Sequence[Result[Cell]], folder: Path) -> list[Path]:
    """Answers the files."""
    if not results:
        raise ExperimentError("no cell is finished yet, so there is nothing to draw.")
    written: list[Path] = []
    if told := of_kind(results, SupervisedCell):
        written += save(draw_study(told), folder / STUDY)
        if has_ablation(told):
            written += save(draw_ablation(told), folder / ABLATION)
    if played := of_kind(results, RlCell):
        for coordinator in coordinators(played):
            figure = draw_players(merged_by(coordinator, played))
            written += save(figure, folder / PLAYERS[coordinator])
    table = folder / TABLE
    table.write_text(markdown(results), encoding="utf-8")
    return [*written, table]
