"""Comparisons as tables: two in Markdown, one for a terminal.

In Markdown, arms are columns of a table of scores, and rows of a table of differences; in a
terminal they are rows of one table, which is narrow however many there are. A difference of more
than two standard errors is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from toolkit.experiment.figures.arms import ALONE, CONTROLS, Arm, Comparison, arms_of
from toolkit.experiment.figures.estimate import STANDARD_ERRORS, Estimate, Scores, difference

NOTHING = "–"
MARKED = f"more than {STANDARD_ERRORS} standard errors"
MINUS = tuple(f"− {control.name}" for control in CONTROLS)
Row = tuple[str, ...]


@dataclass(frozen=True)
class MarkdownTable:
    """Headings, rows and a caption."""

    headings: Row
    rows: tuple[Row, ...]
    caption: str

    def __str__(self) -> str:
        """The table, with its caption below."""
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{self.caption}.\n"


def score_table(
    comparisons: Sequence[Comparison], headings: Sequence[str], caption: str
) -> MarkdownTable:
    """Returns the mean ± standard error of every arm, side by side."""
    arms = arms_of(comparisons)
    rows = [
        (
            *c.place,
            *(_mean(c.scores.get(arm), c.digits) for arm in arms),
            _counts(map(len, c.scores.values())),
        )
        for c in comparisons
    ]
    return MarkdownTable((*headings, *(arm.name for arm in arms), "seeds"), tuple(rows), caption)


def difference_table(comparisons: Sequence[Comparison], headings: Sequence[str]) -> MarkdownTable:
    """Returns every arm's paired differences to both controls; what is marked is bold."""
    rows, spread = [], False
    for comparison in comparisons:
        for arm in sorted(comparison.scores.keys() - {ALONE}):
            found = list(_differences(comparison, arm))
            pairs = [estimate.seeds for estimate in found if estimate is not None]
            if pairs:
                entries = (_bold(estimate, comparison.digits) for estimate in found)
                rows.append((*comparison.place, arm.name, *entries, _counts(pairs)))
                spread = spread or max(pairs) > 1
    about = f"s, mean ± standard error; bold: {MARKED}" if spread else ""
    caption = f"differences of the same seed{about}"
    return MarkdownTable((*headings, "arm", *MINUS, "seeds"), tuple(rows), caption)


def terminal_table(comparisons: Sequence[Comparison], headings: Sequence[str], title: str) -> Table:
    """Returns scores and differences: the arms of each place below it.

    Places are named without what all of them have in common.
    """
    places = [c.place for c in comparisons]
    kept = [i for i, values in enumerate(zip(*places, strict=True)) if len(set(values)) > 1]
    table = Table(
        *(", ".join(headings[i] for i in kept), "mean ± s.e.", *MINUS, "seeds"),
        title=title,
        title_justify="left",
        caption=f"differences of the same seeds; *: {MARKED} (s.e.)",
        caption_justify="left",
    )
    for comparison in comparisons:
        if kept:
            table.add_row(Text(", ".join(comparison.place[i] for i in kept), style="bold"))
        for arm in sorted(comparison.scores):
            digits = comparison.digits
            entries = (_starred(found, digits) for found in _differences(comparison, arm))
            scores = comparison.scores[arm]
            name = f"  {arm.name}" if kept else arm.name
            table.add_row(name, _mean(scores, digits), *entries, str(len(scores)))
        table.add_section()
    return table


def _differences(comparison: Comparison, arm: Arm) -> Iterator[Estimate | None]:
    """Yields the difference to each control; None where there is none, as to itself."""
    for control in CONTROLS:
        scores = comparison.scores.get(control, {})
        # Alone is the first control: what a homogeneous fleet gains over it stands in its own row.
        comparable = arm not in (control, ALONE)
        yield difference(comparison.scores[arm], scores) if comparable else None


def _mean(scores: Scores | None, digits: int) -> str:
    return Estimate.of(scores.values()).text(digits=digits) if scores else NOTHING


def _bold(found: Estimate | None, digits: int) -> str:
    if found is None:
        return NOTHING
    text = found.text(digits=digits + 1, signed=True)
    return f"**{text}**" if found.counts else text


def _starred(found: Estimate | None, digits: int) -> Text:
    if found is None:
        return Text("")
    text = found.text(digits=digits + 1, signed=True)
    return Text(f"{text} *", style="bold") if found.counts else Text(text)


def _counts(numbers: Iterable[int]) -> str:
    """As 3, or 2–5 where they are not all the same."""
    found = sorted(set(numbers))
    return f"{found[0]}–{found[-1]}" if len(found) > 1 else f"{found[0]}"
