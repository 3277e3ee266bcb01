"""The pages of the documentation, and sessions that run their commands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from firmware_sim.bundle.reader import Bundle
from tests.docs.pages import ROOT, Page, Pages, Session, StartSession, export_key
from tests.harness.bundles import DIGITS, bundles

__all__ = ["bundles"]


@pytest.fixture(scope="session")
def ran(bundles: dict[str, Bundle]) -> dict[str, tuple[Path, str]]:
    """Exports by command and source: a copy of the bundle, and what was said.

    The bundles that most pages begin with are the ones of the scenarios.
    """
    return {
        export_key(["export", "--profile", profile, *DIGITS]): (bundle.folder, "")
        for profile, bundle in bundles.items()
    }


@pytest.fixture
def pages() -> Pages:
    """The pages that some patterns below the repository match."""

    def find(*patterns: str) -> list[Page]:
        return [Page(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]

    return find


@pytest.fixture
def session(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ran: dict[str, tuple[Path, str]],
) -> StartSession:
    """Runs blocks in a new folder, with some words replaced by others that make it shorter."""
    from toolkit.commands.cli import main

    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("examples", "firmware_sim"):  # the commands run from the folder of the repository
        (folder / name).symlink_to(ROOT / name)

    def toolkit(folder: Path, arguments: list[str]) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["toolkit", *arguments])
        capfd.readouterr()
        if keras := sys.modules.get("keras"):  # layers without a name are counted in a process
            keras.utils.clear_session()
        with pytest.raises(SystemExit) as caught:
            main()
        said = capfd.readouterr()
        assert not caught.value.code, f"toolkit {shlex.join(arguments)}\n{said.out}\n{said.err}"
        return said.out

    return lambda shorter: Session(folder, toolkit, ran, shorter)
