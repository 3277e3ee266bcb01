"""The picture in docs/layout.md is the tree, and the tree keeps to its own rules."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "firmware_sim", "profiles", "toolkit")
MOST_LINES = 350  # of a module
MOST_MODULES = 14  # of a folder, __init__.py not counted


def drawn() -> list[str]:
    """The folders of the picture, in its order; two blanks stand for each level."""
    page = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    found, above = [], list[str]()
    for line in picture.splitlines():
        indent, name, _ = re.match(r"( *)(\w+)/( |$)", line).groups()  # type: ignore[union-attr]
        above = [*above[: len(indent) // 2], name]
        found.append("/".join(above))
    return found


def rooms() -> list[Path]:
    """Every package, with the packages in it."""
    return [path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]


def test_every_room_in_the_picture_exists() -> None:
    assert [room for room in drawn() if not (ROOT / room).is_dir()] == []


def test_every_package_is_in_the_picture() -> None:
    assert len(rooms()) > 30
    assert {str(room.relative_to(ROOT)) for room in rooms()} <= set(drawn())


def test_no_room_is_drawn_twice_but_the_toolkit() -> None:
    """It stands at both ends of the way of the data."""
    found = drawn()
    assert {room for room in found if found.count(room) > 1} == {"toolkit"}


def test_every_source_file_that_a_page_names_exists() -> None:
    """By the end of its path: `rules/pooling.py` is in some folder of that name."""
    files = [
        path for part in (*PACKAGES, "tests", "examples") for path in (ROOT / part).rglob("*.py")
    ]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"[`\s]([\w/]+/\w+\.py)\b", page.read_text(encoding="utf-8"))
        if not name.startswith("path/to/")
    }
    assert len(named) > 10
    assert [name for name in sorted(named) if not any(file.match(name[1]) for file in files)] == []


def test_no_module_is_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {lines} lines"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert not long


def test_no_folder_is_crowded() -> None:
    crowded = {
        f"{room.relative_to(ROOT)}: {count} modules"
        for room in rooms()
        if (count := sum(path.name != "__init__.py" for path in room.glob("*.py"))) > MOST_MODULES
    }
    assert not crowded
