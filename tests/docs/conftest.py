"""The pages of the documentation, and sessions that run their commands."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from firmware_sim.bundle.reader import Bundle
from tests.docs.pages import (
    BUNDLE,
    ROOT,
    SAID,
    Exports,
    Page,
    Pages,
    Session,
    StartSession,
    export_key,
)
from tests.harness.bundles import DIGITS, bundles, made_once

__all__ = ["bundles"]


@pytest.fixture(scope="session")
def exports(bundles: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """Exports by command and source, made once in a run of the tests.

    The bundles that most pages begin with are the ones of the scenarios.
    """
    known = {
        export_key(["export", "--profile", profile, *DIGITS]): bundle
        for profile, bundle in bundles.items()
    }

    def export(key: str, make: Callable[[Path], None]) -> Path:
        if key in known:
            bundle = known[key]

            def make(folder: Path) -> None:
                shutil.copytree(bundle.folder, folder / BUNDLE)
                (folder / SAID).touch()

        name = sha256(key.encode()).hexdigest()[:16]
        return made_once(tmp_path_factory, f"export-{name}", make)

    return export


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
    exports: Exports,
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

    return lambda shorter: Session(folder, toolkit, exports, shorter)
