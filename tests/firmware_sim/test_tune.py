"""Tuning on a device: without TensorFlow, from a folder that was carried there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.errors import TuneError
from firmware_sim.training.runtime import RUNTIMES
from firmware_sim.tune import INDEX, read_index, tune

NAMES = ["6x7x3 3x2x5", "5x5x2 2x2x3 first"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from toolkit.autodiff.lower import Layer
    from toolkit.tuning.candidates import write_candidates

    folder = tmp_path_factory.mktemp("candidates")
    layers = [Layer((6, 7, 3), (3, 2, 5)), Layer((5, 5, 2), (2, 2, 3), first=True)]
    assert [layer.name for layer in layers] == NAMES
    write_candidates(layers, 4, folder, part_bytes=2**20)
    return folder


@pytest.fixture
def candidates(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in made.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firmware_sim.tune", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_file_holds_every_time_and_the_least_is_chosen(
    made: Path, tmp_path: Path, runtime: str
) -> None:
    out = tmp_path / "tuning.json"
    ran = run(made, "--runtime", runtime, "--out", out)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    found = json.loads(out.read_text())
    assert (found["format"], found["runtime"], found["threads"]) == (1, runtime, 1)
    assert found["batch"] == 4
    assert list(found["layers"]) == NAMES
    index = read_index(made)
    for layer in index.layers:
        entry = found["layers"][layer.name]
        assert entry["seconds"].keys() == layer.choices.keys()
        assert len(entry["seconds"]) == 5
        chosen = entry["formulation"]
        assert 0 < entry["seconds"][chosen] == min(entry["seconds"].values())
    said = [line for line in ran.stderr.splitlines() if " ms, " in line]
    assert [line.partition(":")[0] for line in said] == [
        f"{i + 1}/2 {n}" for i, n in enumerate(NAMES)
    ]

    from toolkit.tuning.files import read

    tuning = read(out, runtime)
    assert {n: c.formulation for n, c in tuning.choices.items()} == {
        n: found["layers"][n]["formulation"] for n in NAMES
    }


def test_the_fastest_wins(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from firmware_sim import tune as module

    def timed(layer: Any, **options: Any) -> dict[str, float]:
        return {n: 1.0 if n == "rows" else 2.5 for n in layer.choices}

    monkeypatch.setattr(module, "time_layer", timed)
    said: list[str] = []
    found = tune(read_index(made), runtime=None, threads=2, rounds=7, say=said.append)
    for entry in found["layers"].values():
        assert (entry["formulation"], entry["part_bytes"]) == ("rows", 2**20)
    assert said[0] == ("1/2 6x7x3 3x2x5: rows, 1000.00 ms, 2.5 times as fast as the slowest of 5")


def test_a_device_needs_nothing_but_numpy_and_a_runtime(made: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from firmware_sim.tune import main; main(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-c", code, str(made), "--out", str(tmp_path / "tuning.json")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    loaded = set(ran.stdout.split())
    assert "ai_edge_litert" in loaded
    assert loaded & {"tensorflow", "keras", "onnx", "toolkit", "tflite_runtime", "paho"} == set()


# --- refusals ------------------------------------------------------------------------------------


def refusal(folder: Path) -> str:
    with pytest.raises(TuneError) as caught:
        read_index(folder)
    return str(caught.value)


def test_a_folder_without_candidates_is_refused(tmp_path: Path) -> None:
    ran = run(tmp_path, "--out", tmp_path / "tuning.json")
    assert (ran.returncode, ran.stderr) == (
        1,
        f"error: {tmp_path} holds no candidates (No such file or directory: index.json); "
        "make them with `toolkit candidates`.\n",
    )
    assert not (tmp_path / "tuning.json").exists()


def test_a_runtime_that_is_not_there_is_refused(made: Path, tmp_path: Path) -> None:
    ran = run(made, "--runtime", "litert", "--out", tmp_path / "tuning.json")
    assert ran.returncode == 1
    assert ran.stderr == (
        "error: the runtime litert is not installed; here there is ai-edge-litert, "
        "tflite-runtime.\n"
    )


def test_too_few_rounds_are_refused(made: Path) -> None:
    ran = run(made, "--rounds", "6")
    assert ran.returncode == 2
    assert "--rounds is at least 7, --threads at least 1" in ran.stderr


def test_damaged_candidates_are_refused(candidates: Path) -> None:
    model = candidates / "1.tflite"
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    assert refusal(candidates) == (
        f"{model} is damaged, for its sha256 differs; copy the folder again."
    )
    model.unlink()
    assert refusal(candidates) == f"{model} cannot be read (No such file or directory)."


def test_a_wrong_index_is_refused(candidates: Path) -> None:
    path = candidates / INDEX
    index = json.loads(path.read_text())
    del index["layers"][0]["sha256"]
    path.write_text(json.dumps(index))
    assert refusal(candidates) == f"{path} lacks something ('sha256'); make the candidates again."
    path.write_text(json.dumps(index | {"format": 2}))
    assert refusal(candidates) == f"{path} is not of format 1; make the candidates again."
    path.write_text("{")
    assert refusal(candidates) == f"{path} is not JSON; copy the folder again."
