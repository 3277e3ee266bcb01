"""Results say which commit made them, and whether its files had been changed."""

import subprocess
from pathlib import Path

from toolkit.experiment.running.provenance import commit, provenance


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    ran = subprocess.run(
        ["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_a_changed_file_makes_it_dirty(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    made = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "other").write_text("git does not know it", encoding="utf-8")
    assert commit(tmp_path) == made
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert commit(tmp_path) == f"{made}-dirty"


def test_outside_a_repository_there_is_none(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    assert commit(tmp_path / "nowhere") is None


def test_versions() -> None:
    versions = provenance()["versions"]
    assert isinstance(versions, dict) and {"python", "numpy", "tensorflow"} <= versions.keys()
