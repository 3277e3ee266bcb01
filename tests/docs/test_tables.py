"""Every table of a study in README and docs is what the code makes of `results/`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from toolkit.experiment.figures.documents import Place, places
from toolkit.experiment.figures.study_tables import StudyTables, study_tables
from toolkit.experiment.running.results import read_results

PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/*.md")))]
FOUND = [(page, place) for page in PAGES for place in places((ROOT / page).read_text("utf-8"))]


@cache
def tables_of(folder: str) -> list[StudyTables]:
    return study_tables(read_results(ROOT / folder))


@pytest.mark.parametrize(
    ("page", "place"), FOUND, ids=[f"{page} {place.folder} {place.part}" for page, place in FOUND]
)
def test_a_table_is_computed_from_results(page: str, place: Place) -> None:
    assert place.text == place.filled(tables_of(place.folder)), (
        f"`toolkit figures {place.folder} --write-into {page}` writes it"
    )


def test_both_pages_of_results_have_tables() -> None:
    assert {"README.md", "docs/reproduction.md"} <= {page for page, _ in FOUND}


@pytest.mark.parametrize("page", PAGES)
def test_no_table_of_a_study_is_written_by_hand(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for place in places(text):
        text = text.replace(place.text, "")
    assert not re.findall(r"^[|┃].*\bisolated\b.*\bhomogeneous\b.*$", text, re.MULTILINE)


@pytest.mark.parametrize("folder", sorted((ROOT / "results").iterdir()), ids=lambda f: f.name)
def test_the_table_beside_results_is_theirs(folder: Path) -> None:
    text = "\n".join(tables.markdown() for tables in tables_of(f"results/{folder.name}"))
    assert (folder / "table.md").read_text("utf-8") == text
