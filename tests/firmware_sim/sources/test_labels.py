"""Names of classes keep their numbers; labels that are no target are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firmware_sim.errors import SourceError
from firmware_sim.sources.labels import ClassNames, NoLabel, number_of


def test_names_are_numbered_as_they_come_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "source" / "classes.json"
    names = ClassNames(outputs=3, file=file)
    assert [names.number(name) for name in ("run", "idle", "run", " idle ")] == [0, 1, 0, 1]
    again = ClassNames(outputs=3, file=file)
    assert [again.number(name) for name in ("idle", "run", "broken")] == [1, 0, 2]
    with pytest.raises(NoLabel, match="'hot' is one more class than the bundle tells apart"):
        again.number("hot")
    assert ClassNames(outputs=3, file=file).names == ("run", "idle", "broken")


def test_names_that_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "classes.json"
    names = ClassNames(("idle", "run"), outputs=2, file=file, alone=False)
    assert names.number("run") == 1
    assert names.number(0) == 0
    assert names.number("1") == 1
    with pytest.raises(NoLabel, match=r"not one of the classes \(did you mean 'idle'\?\)"):
        names.number("idel")
    with pytest.raises(SourceError, match="numbers the classes as idle, run, and the settings"):
        ClassNames(("run", "idle"), file=file)
    assert ClassNames(("idle", "run", "hot"), file=file).number("hot") == 2
    with pytest.raises(SourceError, match="list 3 classes; the bundle tells 2 apart"):
        ClassNames(("idle", "run", "hot"), outputs=2)


def test_a_fleet_takes_no_names_that_are_not_listed(tmp_path: Path) -> None:
    names = ClassNames(outputs=3, alone=False)
    with pytest.raises(NoLabel, match="same on every device of the fleet"):
        names.number("run")
    assert names.number("2") == 2
    alone = ClassNames(outputs=3, file=tmp_path / "classes.json")
    alone.number("run")
    with pytest.raises(SourceError, match="list them in the settings"):
        ClassNames(outputs=3, file=tmp_path / "classes.json", alone=False)


@pytest.mark.parametrize("label", ["3", 3, -1, 2.5, float("nan"), float("inf"), None, [1], {}, ""])
def test_labels_that_are_no_class(label: Any) -> None:
    names = ClassNames(outputs=3)
    with pytest.raises(NoLabel):
        names.number(label)
    assert names.names == ()


@pytest.mark.parametrize(("label", "number"), [("2", 2), ("2.0", 2), (1.0, 1), (True, 1), (0, 0)])
def test_labels_that_are_numbers(label: Any, number: int) -> None:
    assert ClassNames(outputs=3).number(label) == number


def test_numbers_as_targets() -> None:
    assert [number_of(label) for label in ("1.5", 2, -3.25)] == [1.5, 2, -3.25]
    for label in ("warm", "nan", "1_0", float("inf"), None, True, [1], 10**400):
        with pytest.raises(NoLabel):
            number_of(label)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[" * 10_000])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "classes.json"
    file.write_text(content)
    with pytest.raises(SourceError, match="is damaged"):
        ClassNames(file=file)
