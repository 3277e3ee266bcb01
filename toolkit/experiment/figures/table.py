"""A table of a study's results, in Markdown or for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from toolkit.experiment.cell import Cell
from toolkit.experiment.running.results import Result


@dataclass(frozen=True)
class StudyTable:
    """Headings, rows, and a caption that says what was run."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str

    def markdown(self) -> str:
        """Returns the table with its caption below."""
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.caption}\n"

    def for_terminal(self, title: str, *, first_column: int = 0) -> Table:
        """Returns the table without the columns before `first_column`."""
        table = Table(*self.headings[first_column:], title=title, title_justify="left")
        for row in self.rows:
            table.add_row(*row[first_column:])
        return table


def caption(results: Sequence[Result[Cell]], *, what: str, length: str, details: str = "") -> str:
    """Returns one sentence: what the numbers are, how long was trained, and with which options."""
    first = results[0]
    options = first.cell.options
    seeds = len({result.cell.seed for result in results})
    rate = f" at learning rate {options.learning_rate:g}" if options.learning_rate else ""
    return (
        f"{options.task}{what}, median (lowest–highest) of {seeds} seed{'s' if seeds > 1 else ''}; "
        f"{options.rounds} rounds of {length}{rate}{details}; engine {options.engine}; "
        f"commit {first.commit}."
    )
