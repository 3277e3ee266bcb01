"""The table of the supervised study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit.experiment.cell import ANY, DEVICES, HETEROGENEOUS, SETTINGS, WEAK
from toolkit.experiment.figures.median_range import cell_text
from toolkit.experiment.figures.supervised_summary import (
    Line,
    SupervisedResult,
    final_accuracies,
    fractions,
    has_ablation,
    topologies,
)
from toolkit.experiment.figures.table import StudyTable, caption

TITLES = {"share-first": "share first layers", "cascading": "cascading", ANY: "any topology"}
HEADINGS = ("topology", "device", "holds", *SETTINGS)
NO_DROPOUT = "heterogeneous, no branch dropout"


def supervised_table(results: Sequence[SupervisedResult]) -> StudyTable:
    """Returns, for every setting, the median (lowest–highest) accuracy in percent."""
    options = results[0].cell.options
    sentence = caption(
        results,
        what=f", {options.split}: test accuracy in percent of the version that validated best",
        length=f"{options.examples_per_round} examples",
    )
    headings = HEADINGS + (NO_DROPOUT,) * has_ablation(results)
    return StudyTable(headings, tuple(_rows(results)), sentence)


def _rows(results: Sequence[SupervisedResult]) -> Iterator[tuple[str, ...]]:
    for topology in topologies(results) or [ANY]:
        for device in DEVICES:
            lines = [Line(setting, topology, device) for setting in SETTINGS]
            lines += [Line(HETEROGENEOUS, topology, device, False)] * has_ablation(results)
            columns = [final_accuracies(results, line) for line in lines]
            for fraction in fractions(results):
                holds = fraction if device == WEAK else 1 - fraction
                cells = [cell_text(column.get(fraction)) for column in columns]
                yield TITLES[topology], device, f"{100 * holds:g} %", *cells
