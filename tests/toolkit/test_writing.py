"""A bundle takes its place whole or not at all, whatever happens meanwhile."""

import ctypes
import errno
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolkit.errors import ExportError
from toolkit.writing import make_folder, replacing


def write(target: Path, text: str) -> None:
    with replacing(target) as draft:
        (draft / "manifest.json").write_text(text)


def read(target: Path) -> str:
    return (target / "manifest.json").read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a bundle is already."""
    folder = tmp_path / "build" / "weak"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("old")
    (folder / "extra").write_text("old")
    return folder


# --- it works ------------------------------------------------------------------------------------


def test_a_new_target_is_made_with_its_parents(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "weak"
    write(target, "new")
    assert read(target) == "new"
    assert names(target.parent) == ["weak"]
    assert target.stat().st_mode & 0o777 == 0o755


def test_the_draft_is_a_hidden_neighbour_until_it_is_done(tmp_path: Path) -> None:
    with replacing(tmp_path / "weak") as draft:
        (draft / "manifest.json").write_text("new")
        assert draft.parent == tmp_path
        assert draft.name.startswith(".weak.")
        assert names(tmp_path) == [draft.name]
    assert names(tmp_path) == ["weak"]


def test_a_bundle_is_replaced_as_a_whole(target: Path) -> None:
    write(target, "new")
    assert names(target) == ["manifest.json"]
    assert read(target) == "new"
    assert names(target.parent) == ["weak"]


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "weak").mkdir()
    write(tmp_path / "weak", "new")
    assert read(tmp_path / "weak") == "new"
    assert names(tmp_path) == ["weak"]


def test_a_link_keeps_leading_to_the_bundle(target: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(target)
    write(link, "new")
    assert link.readlink() == target
    assert read(target) == "new"
    assert (names(tmp_path), names(target.parent)) == (["build", "link"], ["weak"])


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weak").symlink_to(tmp_path / "weak")
    with pytest.raises(ExportError, match=r"^cannot write the bundle to .*weak \(Not a directory"):
        write(tmp_path / "weak", "new")
    assert names(tmp_path) == ["weak"]


def test_a_reader_finds_a_whole_bundle_at_every_moment(target: Path) -> None:
    found, missed, done = set(), [], threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                found.add(read(target))
            except OSError as error:
                missed.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(60):
            write(target, str(number))
    finally:
        done.set()
        reader.join()
    assert missed == []
    assert len(found) > 1
    assert found <= {"old", *map(str, range(60))}


# --- it fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [ExportError, KeyboardInterrupt, RuntimeError, SystemExit])
def test_any_failure_leaves_the_previous_bundle(target: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure), replacing(target) as draft:
        (draft / "manifest.json").write_text("half")
        raise failure
    assert names(target) == ["extra", "manifest.json"]
    assert read(target) == "old"
    assert names(target.parent) == ["weak"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("odd"), "odd"),
    ],
)
def test_an_error_of_the_system_is_a_sentence(target: Path, error: OSError, why: str) -> None:
    with pytest.raises(ExportError) as caught, replacing(target):
        raise error
    assert str(caught.value) == f"cannot write the bundle to {target} ({why})."
    assert (read(target), names(target.parent)) == ("old", ["weak"])


@pytest.mark.parametrize("name", ["file", "folder"])
def test_what_is_no_bundle_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    with pytest.raises(ExportError) as caught:
        write(tmp_path / name, "new")
    assert str(caught.value) == (
        f"{tmp_path / name} exists and is not a bundle; it will not be replaced."
    )
    assert names(tmp_path) == ["file", "folder"]


def test_a_target_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ExportError, match=r"cannot write the bundle to .* \(Not a directory\)\."):
        write(tmp_path / "file" / "a" / "weak", "new")
    with pytest.raises(ExportError, match=r"cannot make the folder .* \(Not a directory\)\."):
        make_folder(tmp_path / "file" / "a")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("out", [".", ".."])
def test_the_folder_one_stands_in_is_refused(
    target: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(target)
    with pytest.raises(ExportError, match=r"is the current folder or above it"):
        write(Path(out), "new")
    assert read(target) == "old"


def test_a_killed_writer_leaves_the_previous_bundle(target: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from toolkit.writing import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1])) as draft:\n"
        "    (draft / 'manifest.json').write_text('half')\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        writer.kill()
    assert writer.returncode == -signal.SIGKILL
    assert read(target) == "old"
    write(target, "new")  # what was left behind is in nobody's way
    assert read(target) == "new"


# --- without the exchange ------------------------------------------------------------------------


class NoExchange:
    """A C library whose kernel refuses to exchange."""

    def __init__(self, number: int) -> None:
        self.number = number

    def renameat2(self, *arguments: object) -> int:
        ctypes.set_errno(self.number)
        return -1


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, None])
def test_without_the_exchange_two_renames_do(
    target: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    libc = NoExchange(number) if number else object()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    kept = []
    rename = Path.rename

    def watched(self: Path, to: Path) -> Path:
        kept.append([read(f) for f in target.parent.iterdir() if (f / "extra").exists()])
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", watched)
    write(target, "new")
    assert kept == [["old"], ["old"]]  # before either rename the old bundle is there, whole
    assert names(target) == ["manifest.json"]
    assert read(target) == "new"
    assert names(target.parent) == ["weak"]


def test_a_failed_second_rename_brings_the_old_bundle_back(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: NoExchange(errno.ENOSYS))
    rename = Path.rename

    def failing(self: Path, to: Path) -> Path:
        if to == target and not self.name.endswith(".old"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ExportError, match=r"\(Input/output error\)\.$"):
        write(target, "new")
    assert names(target) == ["extra", "manifest.json"]
    assert read(target) == "old"
    assert names(target.parent) == ["weak"]


def test_another_refusal_of_the_exchange_is_an_error(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: NoExchange(errno.EACCES))
    with pytest.raises(ExportError, match=r"\(Permission denied\)\.$"):
        write(target, "new")
    assert (read(target), names(target.parent)) == ("old", ["weak"])
