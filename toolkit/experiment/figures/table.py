"""The results of a study as tables in Markdown, one for each kind of cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.experiment.cell import Cell
from toolkit.experiment.figures import players_table, supervised_table
from toolkit.experiment.players.cell import RlCell
from toolkit.experiment.running.results import Result, of_kind
from toolkit.experiment.supervised.cell import SupervisedCell


def markdown(results: Sequence[Result[Cell]]) -> str:
    tables = []
    if told := of_kind(results, SupervisedCell):
        rows = supervised_table.rows(told)
        tables.append(_table(supervised_table.headings(told), rows, supervised_table.about(told)))
    if played := of_kind(results, RlCell):
        tables.append(
            _table(players_table.HEADINGS, players_table.rows(played), players_table.about(played))
        )
    return "\n".join(tables)


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], about: str) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{about}\n"
