"""Lines of text as samples: columns found by their names, cells made into numbers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firmware_sim.errors import SourceError
from firmware_sim.sources.labels import number_in
from firmware_sim.sources.settings import CsvSettings
from firmware_sim.tensor_spec import Array
from profiles.text import printable

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "-", "?"))
LABEL = "label"  # the usual name of its column


class BadLine(ValueError):
    """A line that is no sample; the text is one sentence."""


@dataclass(frozen=True, eq=False)
class Row:
    """One sample, and its label as it was written."""

    sample: Array  # float64[channels]; NaN is missing
    labels: list[str | None]


class Table:
    """Reads line after line; the first one may name the columns."""

    def __init__(
        self, settings: CsvSettings, channels: int, targets: int, *, may_name: bool = True
    ) -> None:
        """`may_name`: the first line may name the columns, unless the settings say more."""
        self._settings = settings
        self._may_name = may_name
        self._first = True
        self._channels = channels
        self._targets = targets
        self._columns: list[int] = []
        self._labels: list[int] = []
        self._width = 0

    def read(self, line: str) -> Row | None:
        """Returns the sample of a line, None for one without; raises `BadLine`."""
        if not line.strip():
            return None
        cells = self._cells(line)
        if self._first and self._is_header(cells):
            self._place(cells)
            self._first = False
            return None
        if not self._width:
            self._place_unnamed(len(cells))
        self._first = False
        if len(cells) != self._width:
            raise BadLine(f"a line has {len(cells)} columns instead of {self._width}.")
        sample = np.array([_number(cells[place]) for place in self._columns])
        labels = [None if _is_missing(cells[place]) else cells[place] for place in self._labels]
        return Row(sample, labels)

    def new_file(self) -> None:
        """What comes next is the first line of another file; it may name the columns anew."""
        self._first = True

    def _cells(self, line: str) -> list[str]:
        try:
            (cells,) = csv.reader([line], delimiter=self._settings.separator)
        except (csv.Error, ValueError):
            raise BadLine("a line is not CSV.") from None
        return [cell.strip() for cell in cells]

    def _is_header(self, cells: Sequence[str]) -> bool:
        if self._settings.header is not None:
            return self._settings.header
        numbers = any(number_in(cell) is not None for cell in cells)
        return self._may_name and not numbers and not self._settings.names

    def _place_unnamed(self, width: int) -> None:
        """Columns that no line names have the names of the settings, or 1, 2, …"""
        names = list(self._settings.names)
        if names and len(names) != width:
            raise BadLine(f"a line has {width} columns instead of {len(names)}.")
        if not names:
            needed = self._channels + self._targets
            if not self._settings.columns and width not in (self._channels, needed):
                raise BadLine(
                    f"a line has {width} columns; the bundle takes {self._channels}"
                    f"{f' and {self._targets} of the label' if self._targets else ''}."
                )
            names = [str(number + 1) for number in range(width)]
        unlabelled = self._settings.columns or self._settings.labels or self._settings.names
        self._place(names, [] if unlabelled else names[self._channels :])

    def _place(self, names: list[str], usual: Sequence[str] = ()) -> None:
        """Finds the columns of samples and labels among all; `usual` are those of labels."""
        named = [name for name in names if name.lower() == LABEL]
        labels = list(self._settings.labels or usual or named) if self._targets else []
        others = [name for name in names if name not in (*labels, *named)]
        columns = list(self._settings.columns or others)
        for name in (*columns, *labels):
            if names.count(name) != 1:
                found = "no" if name not in names else "more than one"
                raise SourceError(
                    f"the source has {found} column {printable(name, 60)!r}; "
                    f"it has {_shown(names)}."
                )
        if len(columns) != self._channels:
            raise SourceError(
                f"the bundle takes {self._channels} columns, and the source has "
                f"{len(columns)} ({_shown(columns)}); name them in the settings, "
                "as columns = ['ax', 'ay']."
            )
        if labels and len(labels) != self._targets:
            raise SourceError(
                f"the bundle takes {self._targets} labels, and the source has "
                f"{len(labels)} ({_shown(labels)}); name them in the settings, "
                "as labels = ['state']."
            )
        self._width = len(names)
        self._columns = [names.index(name) for name in columns]
        self._labels = [names.index(name) for name in labels]


def _number(cell: str) -> float:
    if _is_missing(cell):
        return np.nan
    number = number_in(cell)
    if number is None or not np.isfinite(number):
        raise BadLine(f"{printable(cell, 60)!r} is not a number.")
    return number


def _is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def _shown(names: Sequence[str]) -> str:
    return printable(", ".join(names), 200)
