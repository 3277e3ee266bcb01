"""An export is repeatable, tried out before it is believed, and never half done."""

import json
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from broker.aggregator.slice_file import read_slice
from firmware_sim.bundle.manifest import Measured
from firmware_sim.bundle.reader import BRANCH, FILES, MANIFEST, PREDICT, Bundle
from profiles import load_profile
from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.errors import ExportError
from toolkit.export import bundle as stages
from toolkit.export.bundle import STAGES, export
from toolkit.export.calibration import calibration_for
from toolkit.export.memory_estimate import MemoryEstimate

WEAK = load_profile("weak")
Listing = Callable[[Path], dict[str, bytes]]


def digits(seed: int) -> Branch:
    keras.utils.set_random_seed(seed)
    return zoo.build("digits", "lightweight")


@pytest.fixture
def without_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the stages that take seconds: the models are empty and nothing is measured."""
    for converted in ("convert_module", "convert_prediction", "convert_inference"):
        monkeypatch.setattr(stages, converted, lambda *arguments: b"")
    monkeypatch.setattr(stages, "try_out", lambda *arguments: Measured("none", "0", 1, 0, 0, 0.0))
    nothing = MemoryEstimate(*[0] * 8)
    monkeypatch.setattr(stages, "estimate_memory", lambda *arguments: nothing)


# --- what is written -----------------------------------------------------------------------------


def test_the_same_seed_writes_the_same_bundle_in_place_of_the_previous_one(
    digits_bundle: Bundle, own_bundle: Bundle
) -> None:
    branch = digits(seed=0)
    heard: list[str] = []
    examples = calibration_for(branch, "digits", None)
    again = export(
        branch,
        WEAK,
        own_bundle.folder,
        calibration=examples,
        progress=heard.append,
        trained=(),
    )
    assert heard == list(STAGES)
    assert again.manifest.fingerprint == digits_bundle.manifest.fingerprint
    assert again.slice.read_bytes() == digits_bundle.slice.read_bytes()
    assert again.infer.read_bytes() == digits_bundle.infer.read_bytes()
    assert again.manifest.tensors == digits_bundle.manifest.tensors
    assert [path.name for path in again.folder.parent.iterdir()] == ["weak"]


@pytest.mark.usefixtures("without_training")
def test_another_seed_keeps_the_fingerprint_and_changes_the_values(
    digits_bundle: Bundle, tmp_path: Path
) -> None:
    other = export(digits(seed=1), WEAK, tmp_path / "weak")
    assert other.manifest.fingerprint == digits_bundle.manifest.fingerprint
    assert other.manifest.tensors == digits_bundle.manifest.tensors
    assert other.slice.read_bytes() != digits_bundle.slice.read_bytes()


@pytest.mark.usefixtures("without_training")
def test_the_complex_branch_has_the_same_slice(digits_bundle: Bundle, tmp_path: Path) -> None:
    branch = zoo.build("digits", "complex")
    other = export(branch, load_profile("powerful"), tmp_path / "powerful")
    assert other.manifest.fingerprint == digits_bundle.manifest.fingerprint


def test_the_manifest_describes_the_files(digits_bundle: Bundle) -> None:
    manifest = json.loads((digits_bundle.folder / MANIFEST).read_text())
    assert tuple(manifest["files"]) == (*FILES, PREDICT, BRANCH)
    for name in (*FILES, PREDICT, BRANCH):
        assert manifest["files"][name]["bytes"] == (digits_bundle.folder / name).stat().st_size
    shared, values = read_slice(digits_bundle.slice)
    assert manifest["fingerprint"] == shared.fingerprint
    described = {t["name"]: t["fingerprint"] for t in manifest["tensors"] if t["shared"]}
    assert described == {tensor.name: tensor.fingerprint for tensor in shared.tensors}
    weights = digits(seed=0).weights()
    for name in described:
        np.testing.assert_array_equal(values[name], weights[name])


def test_the_manifest_tells_how_the_branch_learns_and_what_it_takes(digits_bundle: Bundle) -> None:
    manifest = json.loads((digits_bundle.folder / MANIFEST).read_text())
    assert (manifest["format"], manifest["batch_size"]) == (1, 32)
    assert manifest["calibration"] == "scikit-learn digits"
    assert manifest["branch"] == {
        "name": "digits-lightweight",
        "parameters": 3930,
        "shared_parameters": 2480,
        "operations": 96820,
        "input": {"shape": [8, 8, 1], "dtype": "uint8", "scale": 1 / 16},
        "learning": {
            "kind": "supervised",
            "loss": "cross_entropy",
            "optimizer": {
                "name": "Adam",
                "learning_rate": 0.001,
                "beta_1": 0.9,
                "beta_2": 0.999,
                "epsilon": 1e-07,
            },
        },
        "target": {"kind": "class", "shape": [], "classes": 10},
    }
    batch = {"inputs": {"x": ["uint8", [32, 8, 8, 1]], "y": ["int32", [32]]}}
    signatures = manifest["signatures"]
    assert [signatures[name] for name in ("train", "accumulate", "evaluate")] == [batch] * 3
    assert signatures["infer"] == {"inputs": {"x": ["uint8", [1, 8, 8, 1]]}}
    assert signatures["apply"] == {"inputs": {}}
    assert manifest["measured"]["runtime"] == "ai-edge-litert"
    measured = manifest["measured"]
    assert 10 * 2**20 < measured["start_bytes"] < measured["peak_bytes"] < 128 * 2**20
    assert manifest["micro_batch_size"] == 32
    assert manifest["estimated"]["peak_bytes"] == pytest.approx(measured["peak_bytes"], rel=0.15)


# --- failing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [ExportError("no."), KeyboardInterrupt(), OSError("disk")])
@pytest.mark.usefixtures("without_training")
def test_a_failed_export_leaves_the_previous_bundle_byte_for_byte(
    own_bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    listing: Listing,
) -> None:
    drafts: list[list[str]] = []

    def fail(*arguments: object) -> bytes:
        """What is there now is what a kill would leave."""
        assert listing(own_bundle.folder) == before
        beside = (p for p in own_bundle.folder.parent.iterdir() if p != own_bundle.folder)
        drafts.extend(sorted(path.name for path in draft.iterdir()) for draft in beside)
        raise failure

    before, around = listing(own_bundle.folder), listing(own_bundle.folder.parent)
    monkeypatch.setattr(stages, "convert_inference", fail)
    wanted = ExportError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(wanted):
        export(digits(seed=1), WEAK, own_bundle.folder)
    assert drafts == [["model.tflite", "shared.onnx"]]
    assert listing(own_bundle.folder.parent) == around


@pytest.mark.usefixtures("without_training")
def test_a_failed_first_export_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> bytes:
        raise ExportError("no.")

    monkeypatch.setattr(stages, "convert_inference", fail)
    with pytest.raises(ExportError):
        export(digits(seed=1), WEAK, tmp_path / "weak")
    assert list(tmp_path.iterdir()) == []
