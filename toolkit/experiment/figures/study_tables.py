"""The tables of a study, from its results: scores, and differences to the controls.

Results with different options never come into one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.table import Table

from toolkit.experiment.cell import Cell
from toolkit.experiment.figures import players_summary as of_players
from toolkit.experiment.figures import supervised_summary as of_supervised
from toolkit.experiment.figures.arms import Comparison
from toolkit.experiment.figures.shown import shown_of
from toolkit.experiment.figures.table import (
    MarkdownTable,
    difference_table,
    score_table,
    terminal_table,
)
from toolkit.experiment.players.cell import SCORE_WINDOW, PlayerCell, PlayerOptions
from toolkit.experiment.running.results import Result, results_of
from toolkit.experiment.supervised.cell import SupervisedCell, SupervisedOptions

C = TypeVar("C", bound=Cell)


@dataclass(frozen=True)
class StudyTables:
    """The tables of results with the same options."""

    comparisons: Sequence[Comparison]
    headings: Sequence[str]  # of the places that are compared
    caption: str  # what the scores are

    @property
    def scores(self) -> MarkdownTable:
        return score_table(self.comparisons, self.headings, self.caption)

    @property
    def differences(self) -> MarkdownTable:
        return difference_table(self.comparisons, self.headings)

    def markdown(self, *, scores: bool = True, differences: bool = True) -> str:
        """Returns both tables or one; without a control there are no differences."""
        chosen = [self.scores] * scores
        if differences and self.differences.rows:
            chosen.append(self.differences)
        return "\n".join(map(str, chosen))

    def for_terminal(self) -> Table:
        """Returns one table with the caption above it."""
        return terminal_table(self.comparisons, self.headings, f"{self.caption}.")


def study_tables(results: Sequence[Result[Cell]]) -> list[StudyTables]:
    """Returns the tables of all results: supervised ones first, each set of options apart."""
    supervised, players = results_of(results, SupervisedCell), results_of(results, PlayerCell)
    return [
        *_tables(supervised, of_supervised.HEADINGS, of_supervised.comparisons, _about_supervised),
        *_tables(players, of_players.HEADINGS, of_players.comparisons, _about_players),
    ]


def _tables(
    results: Sequence[Result[C]],
    headings: Sequence[str],
    compare: Callable[[Sequence[Result[C]]], list[Comparison]],
    about: Callable[[Result[C]], tuple[str, str, str]],
) -> Iterator[StudyTables]:
    groups: dict[object, list[Result[C]]] = {}
    for result in results:
        groups.setdefault(result.cell.options, []).append(result)
    for group in groups.values():
        yield StudyTables(compare(group), headings, _caption(group, *about(group[0])))


def _caption(results: Sequence[Result[C]], what: str, length: str, details: str) -> str:
    """Returns what the numbers are, how long was trained, with which options, and by which code."""
    options = results[0].cell.options
    seeds = len({result.cell.seed for result in results})
    over = f"mean ± standard error of {seeds} seeds" if seeds > 1 else "1 seed"
    rate = f" at learning rate {options.learning_rate:g}" if options.learning_rate else ""
    commits = list(dict.fromkeys(result.commit for result in results))
    return (
        f"{options.task}{what}, {over}; {options.rounds} rounds of {length}{rate}{details}; engine "
        f"{options.engine}; commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
    )


def _about_supervised(result: Result[SupervisedCell]) -> tuple[str, str, str]:
    options: SupervisedOptions = result.cell.options
    networks = f", {options.weak_model} and {options.strong_model}" if options.weak_model else ""
    measure = shown_of([result]).caption
    optimizer = f", coordinator's optimiser {options.optimizer}" if options.optimizer else ""
    return (
        f"{networks}, {options.split}: {measure} of the version that validated best",
        f"{options.examples_per_round} examples",
        f", merged by {options.merge}{optimizer}",
    )


def _about_players(result: Result[PlayerCell]) -> tuple[str, str, str]:
    options: PlayerOptions = result.cell.options
    return (
        f": mean score of the tests in the last {100 * SCORE_WINDOW:g} % of a device's steps",
        f"{options.steps_per_round} steps of the {options.sync_by} device",
        f", warm-up {options.warm_up}, exploration {options.exploration}, replay "
        f"{options.replay[0]} and {options.replay[1]} steps",
    )
