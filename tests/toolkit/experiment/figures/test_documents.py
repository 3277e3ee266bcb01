"""Tables inside Markdown documents: only what stands between the two comments changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.experiment.figures.arms import ALONE, Arm, Comparison
from toolkit.experiment.figures.documents import END, fill_places, places, write_into
from toolkit.experiment.figures.study_tables import StudyTables

TABLES = [
    StudyTables(
        [Comparison(("weak",), {ALONE: {0: 1.0}, Arm("heterogeneous", "two-loss"): {0: 3.0}})],
        ("device",),
        "what it is",
    )
]
SCORES = (
    "| device | isolated | two-loss | seeds |\n| --- | --- | --- | --- |\n| weak | 1.0 | 3.0 | 1 |"
)
PAGE = """# Title
<!-- table: results/a scores -->
old
<!-- end -->
Between.
<!-- table: results/b -->

other

<!-- end -->
<!-- table: results/a terminal -->
<!-- end -->
"""


def test_places_of_a_page() -> None:
    assert [(p.folder, p.part, p.text) for p in places(PAGE)] == [
        ("results/a", "scores", "old\n"),
        ("results/b", None, "\nother\n\n"),
        ("results/a", "terminal", ""),
    ]


def test_filling_replaces_the_tables_of_one_folder_and_is_repeatable() -> None:
    def tables(folder: str) -> list[StudyTables] | None:
        return TABLES if folder == "results/a" else None

    filled = fill_places(PAGE, tables)
    first, second, third = places(filled)
    assert first.text == f"\n{SCORES}\n\nwhat it is.\n\n"
    assert second.text == "\nother\n\n"
    assert third.text.startswith("```\nwhat it is.\n┏━") and third.text.endswith("\n```\n")
    assert "│ two-loss │ 3.0         │ +2.00      │" in third.text
    assert fill_places(filled, tables) == filled
    outside = [line for line in filled.splitlines() if line in ("# Title", "Between.", END)]
    assert outside == ["# Title", END, "Between.", END, END]


def test_all_tables_are_scores_and_differences() -> None:
    (_, place, _) = places(PAGE)
    assert place.filled(TABLES) == (
        f"\n{SCORES}\n\nwhat it is.\n\n"
        "| device | arm | − isolated | − homogeneous | seeds |\n| --- | --- | --- | --- | --- |\n"
        "| weak | two-loss | +2.00 | – | 1 |\n\ndifferences of the same seed.\n\n"
    )


def test_a_file_without_a_place_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert not write_into(page, Path("results/c"), TABLES)
    assert page.read_text(encoding="utf-8") == PAGE
    assert write_into(page, tmp_path / "results" / "a", TABLES)
    assert SCORES in page.read_text(encoding="utf-8")


def test_the_command_says_where_a_place_is_missing(
    toolkit: Callable[..., Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n", encoding="utf-8")
    results = min((Path(__file__).parents[4] / "results").iterdir())
    said = toolkit("figures", results, "--out", tmp_path / "out", "--write-into", page).refusal
    assert said == (
        f"{page} has no place for a table of {results}; put one there with <!-- table: {results} "
        f"--> and {END}."
    )
