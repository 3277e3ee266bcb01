"""`toolkit bench fuzz`: a short run under atheris, and what it says of an input that fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.bench.fuzz import engine
from toolkit.bench.fuzz.engine import Failure, Ran, reproduce, run_bench, tables
from toolkit.bench.fuzz.targets import target_of
from toolkit.errors import ToolkitError

# The process imports this before it starts: a profile is an error that nobody declared.
BROKEN = """
import tomllib

def wrong(text):
    if "description" in text:
        raise KeyError("forged")
    return {}

tomllib.loads = wrong
"""


def test_a_run_is_guided_by_coverage_and_reports_it(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    out = tmp_path / "fuzz.json"
    options = ["--seconds", "2", "--target", "wire", "--seed", "3", "--out", str(out)]
    command = [sys.executable, "-m", "toolkit", "bench", "fuzz", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wire,) = json.loads(out.read_text())["targets"]
    assert (wire["target"], wire["failures"]) == ("wire", [])
    assert wire["executions"] > 100
    assert wire["edges"] > 30, "the decoder is instrumented"
    assert wire["corpus"] >= len(target_of("wire").seeds()) / 2
    assert not list((tmp_path / "fuzz").iterdir()), "nothing to reproduce"


def test_a_failure_leaves_a_file_that_does_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("atheris")
    monkeypatch.setattr(engine, "MOST_FAILURES", 1)
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = run_bench(
        [target_of("profile")],
        seconds=1,
        seed=0,
        corpus=tmp_path / "none",
        failures=tmp_path / "failures",
        progress=lambda _: None,
    )
    (failure,) = report["targets"][0]["failures"]
    assert failure["what"] == "KeyError: 'forged'"
    file = Path(failure["reproducer"])
    assert file.parent == tmp_path / "failures"
    assert b"description" in file.read_bytes()
    assert "Traceback" in (tmp_path / "failures" / "profile-0.log").read_text()
    reproduce([target_of("profile")], file)  # is no failure in this process


def test_without_atheris_a_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ToolkitError, match=r"^atheris is not installed"):
        run_bench([], seconds=1, seed=0, corpus=tmp_path, failures=tmp_path, progress=print)


def test_a_table_shows_failures_with_their_reproducer() -> None:
    ran = Ran("wire", 1.0, 10, 5, 2, 12_000_000, [Failure("KeyError: 'x'", "out/wire-0")])
    table, text = tables({"targets": [vars(ran) | {"failures": [vars(ran.failures[0])]}]})
    assert text == "wire: KeyError: 'x'\n  out/wire-0"
    assert not isinstance(table, str) and table.row_count == 1


def test_one_input_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(target_of("wire").seeds()[0])
    reproduce([target_of("wire")], file)
    with pytest.raises(ToolkitError, match=r"^--reproduce needs one --target, whose input "):
        reproduce([target_of("wire"), target_of("parts")], file)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("x\nan input failed: KeyError: 'a'\n==1== ERROR: libFuzzer: exited\n", "KeyError: 'a'"),
        ("ALARM\n==1== ERROR: libFuzzer: timeout after 21 seconds\n", "timeout after 21 seconds"),
        ("INFO: x\nSegmentation fault\n", "Segmentation fault"),
        ("", "the process ended without a word."),
    ],
)
def test_what_failed_is_one_line(said: str, what: str) -> None:
    assert engine._what_failed(said) == what
