"""The results of a study as rows: for a Markdown file, and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from toolkit.experiment.cell import ANY, DEVICES, MODES
from toolkit.experiment.results import Result
from toolkit.experiment.summary import Line, Spread, final_accuracies, fractions, topologies

TITLES = {"share-first": "share first layers", "cascading": "cascading", ANY: "any topology"}
HEADINGS = ("topology", "device", "holds", *MODES)
NO_DROPOUT = "heterogeneous, no branch dropout"


def rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """Topology, device, what it holds; for every mode the median (lowest–highest) in percent."""
    for topology in topologies(results) or [ANY]:
        for device in DEVICES:
            lines = [Line(mode, topology, device) for mode in MODES]
            lines += [Line("heterogeneous", topology, device, False)] * has_ablation(results)
            columns = [final_accuracies(results, line) for line in lines]
            for fraction in fractions(results):
                holds = fraction if device == "weak" else 1 - fraction
                cells = [_cell(column.get(fraction)) for column in columns]
                yield TITLES[topology], device, f"{100 * holds:g} %", *cells


def headings(results: Sequence[Result]) -> tuple[str, ...]:
    return HEADINGS + (NO_DROPOUT,) * has_ablation(results)


def has_ablation(results: Sequence[Result]) -> bool:
    return any(not result.cell.branch_dropout for result in results)


def about(results: Sequence[Result]) -> str:
    """One sentence on what was run."""
    first = results[0]
    settings = first.cell.settings
    seeds = len({result.cell.seed for result in results})
    commit = first.header["commit"] or "unknown"
    rate = f" at learning rate {settings.learning_rate:g}" if settings.learning_rate else ""
    return (
        f"{settings.task}, {settings.split}: test accuracy in percent of the version that "
        f"validated best, median (lowest–highest) of {seeds} seed{'s' if seeds > 1 else ''}; "
        f"{settings.rounds} rounds of {settings.examples_per_round} examples{rate}; engine "
        f"{settings.engine}; commit {commit[:12]}."
    )


def markdown(results: Sequence[Result]) -> str:
    titles = headings(results)
    lines = [titles, ("---",) * len(titles), *rows(results)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{about(results)}\n"


def terminal_table(results: Sequence[Result], title: str) -> Table:
    first = len(topologies(results)) < 2  # a single topology needs no column
    table = Table(*headings(results)[first:], title=title, title_justify="left")
    for row in rows(results):
        table.add_row(*row[first:])
    return table


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.seeds == 1:
        return f"{spread.median:.1f}"
    return f"{spread.median:.1f} ({spread.lowest:.1f}–{spread.highest:.1f})"
