"""Tables of studies inside Markdown documents, which are written from results alone.

    <!-- table: results/digits -->              all tables of the study in that folder
    <!-- table: results/digits scores -->       the scores only; or differences, or terminal: as
                                                `toolkit figures` prints them
    …
    <!-- end -->

What stands between the two comments is replaced. Folders are relative to the project.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console

from toolkit.experiment.figures.study_tables import StudyTables

SCORES, DIFFERENCES, TERMINAL = "scores", "differences", "terminal"
COLUMNS = 100  # of the terminal
END = "<!-- end -->"
_PLACE = re.compile(
    rf"(?P<begin><!-- table: (?P<folder>\S+?)"
    rf"(?: (?P<part>{SCORES}|{DIFFERENCES}|{TERMINAL}))? -->\n)"
    rf"(?P<text>.*?)(?={END})",
    re.DOTALL,
)


@dataclass(frozen=True)
class Place:
    """A place for tables in a document, and what stands there."""

    folder: str
    part: str | None  # None: all tables
    text: str

    def filled(self, tables: Sequence[StudyTables]) -> str:
        """Returns what has to stand there."""
        scores, differences = self.part != DIFFERENCES, self.part != SCORES
        if self.part == TERMINAL:
            return f"```\n{_printed(tables)}```\n"
        found = (t.markdown(scores=scores, differences=differences) for t in tables)
        return "\n" + "\n".join(found) + "\n"


def places(document: str) -> Iterator[Place]:
    """Yields the places for tables in a document."""
    for match in _PLACE.finditer(document):
        yield _place(match)


def fill_places(document: str, tables: Callable[[str], Sequence[StudyTables] | None]) -> str:
    """Returns the document with the tables of each folder, or unchanged where they are None."""

    def filled(match: re.Match[str]) -> str:
        place = _place(match)
        found = tables(place.folder)
        return match["begin"] + (place.text if found is None else place.filled(found))

    return _PLACE.sub(filled, document)


def write_into(document: Path, results: Path, tables: Sequence[StudyTables]) -> bool:
    """Replaces the tables of one study in a file; returns whether it has a place for them."""
    text = document.read_text(encoding="utf-8")
    wanted = results.resolve()
    if not any(Path(place.folder).resolve() == wanted for place in places(text)):
        return False
    new = fill_places(text, lambda folder: tables if Path(folder).resolve() == wanted else None)
    document.write_text(new, encoding="utf-8")
    return True


def _printed(tables: Sequence[StudyTables]) -> str:
    """What `toolkit figures` prints of them at 100 columns."""
    screen = StringIO()
    console = Console(width=COLUMNS, file=screen)
    for of_one in tables:
        console.print(of_one.for_terminal())
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())


def _place(match: re.Match[str]) -> Place:
    return Place(match["folder"], match["part"], match["text"])
