"""Tuning files are read strictly; those that ship cover the zoo."""

import json
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.training.runtime import RUNTIMES
from toolkit.autodiff.lower import Choice, Layer, Tuning
from toolkit.errors import ExportError
from toolkit.tuning.files import read, shipped
from toolkit.tuning.zoo import zoo_layers

SMALL, OTHER = Layer((6, 7, 3), (3, 2, 5)), Layer((4, 4, 1), (2, 2, 2), first=True)
GOOD: dict[str, Any] = {
    "format": 1,
    "runtime": "tflite-runtime",
    "layers": {SMALL.name: {"formulation": "rows", "part_bytes": 4096, "seconds": {}}},
}


def test_what_was_measured_is_chosen_and_the_rest_is_by_rule(tmp_path: Path) -> None:
    (tmp_path / "pi.json").write_text(json.dumps(GOOD))
    tuning = read(tmp_path / "pi.json", "tflite-runtime", [SMALL])
    assert tuning.choose(SMALL) == Choice("rows", 4096)
    assert tuning.choose(OTHER) == Tuning("tflite-runtime").choose(OTHER)
    assert tuning.describe([SMALL]) == {
        "source": "pi.json",
        "layers": {"6x7x3 3x2x5": {"formulation": "rows", "part_bytes": 4096}},
    }


def with_layer(entry: Any) -> str:
    return json.dumps(GOOD | {"layers": {SMALL.name: entry}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON (Expecting property name enclosed in double quotes: "
              "line 1 column 2 (char 1))."),
        ("[]", "is not of format 1; record it with this version's "
               "`python -m firmware_sim.tune`."),
        (json.dumps(GOOD | {"format": 2}), "is not of format 1; record it with this version's "
                                           "`python -m firmware_sim.tune`."),
        (json.dumps(GOOD | {"runtime": "ai-edge-litert"}),
         "was recorded in ai-edge-litert, but the profile's runtime is tflite-runtime."),
        (json.dumps(GOOD | {"layers": []}), "holds no layers."),
        (with_layer(3), "has, for the layer '6x7x3 3x2x5', no choice."),
        (with_layer({"formulation": "magic", "part_bytes": 1}),
         "has, for the layer '6x7x3 3x2x5', the unknown formulation 'magic'; "
         "there are convolution, both, columns, rows, none."),
        (with_layer({"formulation": "rows", "part_bytes": True}),
         "has, for the layer '6x7x3 3x2x5', True as part_bytes, which is a number of bytes."),
        (json.dumps(GOOD | {"layers": {}}),
         "does not hold the layer '6x7x3 3x2x5'; record one with the candidates of this branch."),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(ExportError) as caught:
        read(path, "tflite-runtime", [SMALL])
    assert str(caught.value) == f"the tuning {path} {sentence}"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"tuning.json cannot be read \(No such file"):
        read(tmp_path / "tuning.json", "tflite-runtime")


def test_the_shipped_files_cover_the_zoo() -> None:
    names = {layer.name for layer in zoo_layers()}
    for runtime in RUNTIMES:
        assert shipped(runtime).source == "shipped"
        assert shipped(runtime).runtime == runtime
        assert set(shipped(runtime).choices) == names


def test_a_runtime_without_a_file_has_the_rule() -> None:
    unknown = shipped("any")
    assert (unknown.source, unknown.choices) == ("rule", {})
    assert unknown.choose(SMALL) == Tuning("any").choose(SMALL)
