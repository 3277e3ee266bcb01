"""What an export does with a tuning: it is in the model, and in the manifest."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.manifest import Measured
from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.training.limits import MIB
from firmware_sim.tune import read_index
from profiles import Profile, load_profile
from toolkit import zoo
from toolkit.autodiff.lower import Choice
from toolkit.branch.branch import Branch
from toolkit.export import bundle as stages
from toolkit.export import trial
from toolkit.export.bundle import TUNED_STAGES, export
from toolkit.export.inspection import operations
from toolkit.export.memory_estimate import MemoryEstimate
from toolkit.training.module import TrainingModule
from toolkit.tuning.files import SourcedTuning, shipped

Toolkit = Callable[..., Any]
DIGITS = ("10x10x1 3x3x16 first", "8x8x16 3x3x16")  # lightweight
TINY = (
    "import keras\n"
    "from keras import layers\n"
    "def branch():\n"
    "    stem = layers.Conv2D(4, 3, activation='relu', name='stem')\n"
    "    rest = [layers.Flatten(), layers.Dense(3, activation='softmax', name='head')]\n"
    "    return keras.Sequential([keras.Input((8, 8, 1)), stem, *rest]), ['stem']\n"
)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(TINY)
    return f"{tmp_path / 'tiny.py'}:branch"


def tuning_file(folder: Path, formulation: str, *layers: str) -> Path:
    choice = {"formulation": formulation, "part_bytes": 2**20}
    content = {"format": 1, "runtime": "ai-edge-litert", "layers": dict.fromkeys(layers, choice)}
    path = folder / f"{formulation}.json"
    path.write_text(json.dumps(content))
    return path


def test_without_a_tuning_the_shipped_one_is_used_and_named(digits_bundle: Bundle) -> None:
    assert "CONV_2D" not in operations(digits_bundle.model.read_bytes())["train"]
    tuning = shipped("ai-edge-litert")
    assert digits_bundle.manifest.tuning == {
        "source": "shipped",
        "layers": {
            name: {
                "formulation": tuning.choices[name].formulation,
                "part_bytes": tuning.choices[name].part_bytes,
            }
            for name in DIGITS
        },
    }


def test_a_file_decides_which_operations_are_in_the_model(
    toolkit: Toolkit, tiny: str, tmp_path: Path
) -> None:
    file = tuning_file(tmp_path, "convolution", "8x8x1 3x3x4 first")
    out = tmp_path / "out"
    ran = toolkit("export", "--profile", "weak", "--model", tiny, "--tuning", file, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    bundle = open_bundle(out)
    assert bundle.manifest.tuning == {
        "source": "convolution.json",
        "layers": {"8x8x1 3x3x4 first": {"formulation": "convolution", "part_bytes": 2**20}},
    }
    assert operations(bundle.model.read_bytes())["train"]["CONV_2D"] == 1
    ran = toolkit("inspect", out)
    assert "formulations (convolution.json): 8x8x1 3x3x4 first by convolution\n" in ran.out


def test_tuning_by_measurement(toolkit: Toolkit, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "weak"
    ran = toolkit("export", "--profile", "weak", "--model", tiny, "--tune", "--out", out)
    assert (ran.code, ran.err) == (0, "")
    tuning = open_bundle(out).manifest.tuning
    assert list(tuning["layers"]) == ["8x8x1 3x3x4 first"]
    assert tuning["source"] in ("shipped", "measured")  # as fast as each other, nearly
    assert ran.out.splitlines()[2] == (
        f"of the shipped and the measured tuning, the {tuning['source']} one was kept"
    )


# --- which of the two is kept --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mib", "seconds", "micro", "kept"),
    [
        (80, 0.9, 32, "measured"),
        (80, 1.1, 32, "shipped"),  # slower by a whole step
        (127.5, 0.9, 32, "shipped"),  # does not fit
        (80, 0.9, 8, "measured"),
    ],
)
def test_the_measured_tuning_is_kept_if_it_is_faster_and_fits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mib: float,
    seconds: float,
    micro: int,
    kept: str,
) -> None:
    """The shipped tuning takes 100 MiB and a second, in micro-batches of `micro`."""
    odd = Choice("none", 12345)
    asked: list[dict[str, Any]] = []
    heard: list[str] = []

    def convert(module: TrainingModule) -> bytes:
        choices = {
            node.attrs["tuning"].source
            for node in module.training_program.nodes
            if node.op == "Conv2D"
        }
        return f"{choices.pop()} {module.micro_batch}".encode()

    def measure(branch: Branch, profile: Profile, model: Path) -> Measured:
        source, size = model.read_text().split()
        if int(size) > micro:
            return Measured("none", "0", 1, 1000 * MIB, 0, 0.1)
        if source == "shipped":
            return Measured("none", "0", 1, 100 * MIB, 0, 1.0)
        return Measured("none", "0", 1, int(mib * MIB), 0, seconds)

    def tune(branch: Branch, *, progress: Callable[[str], None], **options: Any) -> SourcedTuning:
        asked.append(options)
        progress("layer 1 of 2")
        return SourcedTuning("ai-edge-litert", dict.fromkeys(DIGITS, odd), "measured")

    for module in (stages, trial):
        monkeypatch.setattr(module, "convert_module", convert)
        monkeypatch.setattr(module, "try_out", measure)
    for converted in ("convert_inference", "convert_prediction"):
        monkeypatch.setattr(stages, converted, lambda *arguments: b"")
    monkeypatch.setattr(trial, "measure_tuning", tune)
    nothing = MemoryEstimate(*[0] * 8)
    monkeypatch.setattr(stages, "estimate_memory", lambda *arguments: nothing)

    profile = replace(load_profile("weak"), threads=2)
    branch = zoo.build("digits", "lightweight")
    made = export(branch, profile, tmp_path / "weak", tune=True, progress=heard.append)
    assert asked == [{"batch": micro, "runtime": "ai-edge-litert", "threads": 2}]
    assert [stage for stage in heard if ":" not in stage] == list(TUNED_STAGES)
    assert "tune: layer 1 of 2" in heard
    assert made.model.read_text() == f"{kept} {micro}"
    assert made.manifest.tuning["source"] == kept
    if kept == "measured":
        chosen = made.manifest.tuning["layers"][DIGITS[1]]
        assert chosen == {"formulation": "none", "part_bytes": 12345}


# --- commands ------------------------------------------------------------------------------------


def test_candidates_are_written_for_a_device(toolkit: Toolkit, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "candidates"
    options = ("--profile", "weak", "--model", tiny, "--micro-batch", "2", "--out", out)
    ran = toolkit("candidates", *options)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"{out}: tiny-branch; 8x8x1 3x3x4 first",
        "on the device: python -m firmware_sim.tune candidates --runtime ai-edge-litert "
        "--threads 1",
    ]
    index = read_index(out)
    assert (index.batch, [layer.name for layer in index.layers]) == (2, ["8x8x1 3x3x4 first"])


def test_measuring_and_reading_at_once_is_refused(toolkit: Toolkit, tmp_path: Path) -> None:
    ran = toolkit("export", "--profile", "weak", "--tune", "--tuning", tmp_path / "tuning.json")
    assert ran.refusal == ("--tune measures a tuning and --tuning reads one; give one of the two.")


def test_a_tuning_of_another_branch_is_refused(toolkit: Toolkit, tiny: str, tmp_path: Path) -> None:
    file = tuning_file(tmp_path, "rows", *DIGITS)
    out = tmp_path / "weak"
    ran = toolkit("export", "--profile", "weak", "--model", tiny, "--tuning", file, "--out", out)
    assert ran.refusal == (
        f"the tuning {file} does not hold the layer '8x8x1 3x3x4 first'; record one with the "
        "candidates of this branch."
    )
    assert not out.exists()
