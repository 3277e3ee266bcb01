"""The command `toolkit`: what it prints, and one sentence for everything a user can get wrong."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from firmware_sim.bundle.reader import Bundle
from toolkit.commands.cli import ORDER, app

Toolkit = Callable[..., Any]
Listing = Callable[[Path], dict[str, bytes]]
TOOLKIT = Path(sys.executable).with_name("toolkit")
NOISE = ("oneDNN", "cuda", "CUDA", "WARNING", "I0000", "W0000", "E0000", "Traceback")


def really(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, as a user runs it."""
    loud = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return subprocess.run(
        [TOOLKIT, *arguments], cwd=cwd, env=loud, capture_output=True, text=True, timeout=180
    )


def test_help_lists_every_command_in_the_order_of_use(toolkit: Toolkit) -> None:
    ran = toolkit("--help")
    assert (ran.code, ran.err) == (0, "")
    rows = (line.split() for line in ran.out.splitlines() if line.startswith("│ "))
    shown = [row[1] for row in rows if row[1] in ORDER]
    assert tuple(shown) == ORDER
    assert set(typer.main.get_group(app).commands) == set(ORDER)


@pytest.mark.parametrize("name", ["[/red]", "[bold]x[/]", "[/red].toml"])
def test_square_brackets_are_no_markup(toolkit: Toolkit, name: str) -> None:
    assert toolkit("export", "--profile", name).refusal.startswith(f"Profile {name} ")


def test_demo_and_bench_refuse_an_output_below_a_file(toolkit: Toolkit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    ran = toolkit("demo", "--out", tmp_path / "file" / "demo")
    assert ran.refusal == f"cannot make the folder {tmp_path / 'file' / 'demo'} (Not a directory)."
    ran = toolkit("bench", "step", "--out", tmp_path / "file" / "step.json")
    assert ran.refusal == f"cannot make the folder {tmp_path / 'file'} (File exists)."


def test_the_version_is_said(toolkit: Toolkit) -> None:
    ran = toolkit("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"stemshare {version('stemshare')}\n", "")


# --- what nobody foresaw -------------------------------------------------------------------------


def test_an_interrupted_export_says_so_and_replaces_nothing(
    toolkit: Toolkit, own_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, listing: Listing
) -> None:
    def interrupt(*arguments: object) -> bytes:
        raise KeyboardInterrupt

    before = listing(own_bundle.folder.parent)
    monkeypatch.setattr("toolkit.export.bundle.convert_module", interrupt)
    arguments = ("--task", "digits", "--out", own_bundle.folder)
    ran = toolkit("export", "--profile", "weak", *arguments)
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted; nothing was replaced\n")
    assert listing(own_bundle.folder.parent) == before


def test_what_libraries_said_is_shown_only_when_nobody_foresaw_the_failure(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from toolkit.errors import ModelError
    from toolkit.terminal import quiet_terminal

    for error, shown in ((ModelError("mend it."), ""), (RuntimeError("what?"), "to 1\nto 2\n")):
        with pytest.raises(type(error)), quiet_terminal():
            os.write(1, b"to 1\n")
            os.write(2, b"to 2\n")
            raise error
        assert capfd.readouterr() == ("", shown)
    with quiet_terminal() as console:
        os.write(2, b"noise\n")
        console.print("status")
    print("after", flush=True)
    assert capfd.readouterr() == ("after\n", "status\n")
