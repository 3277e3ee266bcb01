"""The rows of the supervised study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from toolkit.experiment.cell import ANY, DEVICES, MODES
from toolkit.experiment.figures.median_range import shown
from toolkit.experiment.figures.supervised_summary import (
    Line,
    Studied,
    final_accuracies,
    fractions,
    topologies,
)

TITLES = {"share-first": "share first layers", "cascading": "cascading", ANY: "any topology"}
HEADINGS = ("topology", "device", "holds", *MODES)
NO_DROPOUT = "heterogeneous, no branch dropout"


def rows(results: Sequence[Studied]) -> Iterator[tuple[str, ...]]:
    """Topology, device, what it holds; for every mode the median (lowest–highest) in percent."""
    for topology in topologies(results) or [ANY]:
        for device in DEVICES:
            lines = [Line(mode, topology, device) for mode in MODES]
            lines += [Line("heterogeneous", topology, device, False)] * has_ablation(results)
            columns = [final_accuracies(results, line) for line in lines]
            for fraction in fractions(results):
                holds = fraction if device == "weak" else 1 - fraction
                cells = [shown(column.get(fraction)) for column in columns]
                yield TITLES[topology], device, f"{100 * holds:g} %", *cells


def headings(results: Sequence[Studied]) -> tuple[str, ...]:
    return HEADINGS + (NO_DROPOUT,) * has_ablation(results)


def has_ablation(results: Sequence[Studied]) -> bool:
    return any(not result.cell.branch_dropout for result in results)


def about(results: Sequence[Studied]) -> str:
    """One sentence on what was run."""
    first = results[0]
    settings = first.cell.settings
    seeds = len({result.cell.seed for result in results})
    rate = f" at learning rate {settings.learning_rate:g}" if settings.learning_rate else ""
    return (
        f"{settings.task}, {settings.split}: test accuracy in percent of the version that "
        f"validated best, median (lowest–highest) of {seeds} seed{'s' if seeds > 1 else ''}; "
        f"{settings.rounds} rounds of {settings.examples_per_round} examples{rate}; engine "
        f"{settings.engine}; commit {first.commit}."
    )


def terminal_table(results: Sequence[Studied], title: str) -> Table:
    first = len(topologies(results)) < 2  # a single topology needs no column
    table = Table(*headings(results)[first:], title=title, title_justify="left")
    for row in rows(results):
        table.add_row(*row[first:])
    return table
