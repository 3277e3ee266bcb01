"""infer.tflite from trained weights: as good as measured, and the bundle is never harmed."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.durable import read_sealed, write_sealed
from firmware_sim.bundle.reader import (
    INFER,
    MODEL,
    SLICE,
    Bundle,
    open_bundle,
    write_manifest,
)
from firmware_sim.tasks.digits import read_digits
from firmware_sim.training.checkpoint import FILE
from firmware_sim.training.runtime import Model

Toolkit = Callable[..., Any]
Listing = Callable[[Path], dict[str, bytes]]


@pytest.fixture(scope="module")
def trained(digits_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a device that trained two rounds of digits. To be read only."""
    state = tmp_path_factory.mktemp("trained") / "state"
    command = [sys.executable, "-m", "firmware_sim.device", "--isolated", "--id", "pi-7"]
    command += ["--task", "digits", "--rounds", "2", "--steps", "60", "--state", str(state)]
    subprocess.run([*command, "--bundle", digits_bundle.folder], check=True, capture_output=True)
    return state


def accuracy(model: Model) -> float:
    examples = read_digits()
    answers = [model.call("infer", x=x[None])["output"].argmax() for x in examples.x_test]
    return float(np.mean(answers == examples.y_test))


def test_the_trained_weights_replace_the_random_ones(
    toolkit: Toolkit, own_bundle: Bundle, digits_bundle: Bundle, trained: Path
) -> None:
    device = Model(own_bundle.model)  # it has the bundle open, and goes on afterwards
    before = device.call("get_state")
    ran = toolkit("requantise", own_bundle.folder, "--state", trained)
    assert (ran.code, ran.err) == (0, "")

    again = open_bundle(own_bundle.folder)
    entry = again.manifest.files[INFER]
    compared = entry.requantised["comparison"]
    assert entry.requantised["quantisation"] == "int8"
    assert entry.requantised["weights"] == {
        "device": "pi-7",
        "run": "isolated",
        "round": 2,
        "steps_done": 0,
    }
    assert accuracy(Model(digits_bundle.infer)) < 0.3  # random weights
    assert accuracy(Model(again.infer)) == pytest.approx(compared["accuracy"])
    assert compared["float32_accuracy"] > 0.8
    assert abs(compared["accuracy"] - compared["float32_accuracy"]) < 0.05
    assert (compared["examples"], compared["runtime"]) == (360, "ai-edge-litert")
    assert 0.95 < compared["same_answer"] <= 1
    assert 0 < compared["mean_difference"] < 0.02
    first, second = ran.out.splitlines()
    assert first.startswith(f"{own_bundle.folder}: {INFER} {entry.bytes / 1e3:,.1f} kB in int8 ")
    assert first.endswith(" with the weights of pi-7 after 2 rounds")
    assert second.startswith(
        f"accuracy {compared['accuracy']:.1%}, and {compared['float32_accuracy']:.1%} in float32; "
    )

    for name in (MODEL, SLICE):  # what the device and the aggregator know stays as it was
        assert (again.folder / name).read_bytes() == (digits_bundle.folder / name).read_bytes()
    before_it = digits_bundle.manifest
    expected = replace(
        before_it, files=again.manifest.files, calibration=again.manifest.calibration
    )
    assert again.manifest == expected
    assert [path.name for path in own_bundle.folder.parent.iterdir()] == ["weak"]
    for name, value in device.call("get_state").items():
        np.testing.assert_array_equal(value, before[name])


MODELS = """\
import keras
from keras import layers
from toolkit.branch import Branch

def branch(units=10, activation="relu", name="digits-of-mine", scale=1 / 16):
    x = keras.Input((8, 8, 1))
    y = layers.Conv2D(16, 3, padding="same", activation="relu", name="stem_conv1")(x)
    y = layers.Conv2D(16, 3, activation=activation, name="stem_conv2")(y)
    y = layers.Flatten(name="light_flatten")(layers.MaxPooling2D(2, name="stem_pool")(y))
    y = layers.Softmax(name="softmax")(layers.Dense(units, name="light_output")(y))
    stem = ("stem_conv1", "stem_conv2")
    return Branch(name, keras.Model(x, y), stem, input_dtype="uint8", input_scale=scale)

def wider():
    return branch(units=11)

def scaled():
    return branch(scale=1.0)

def bent():
    return branch(activation="tanh")
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    return file


def test_a_users_branch_and_data_are_taken(
    toolkit: Toolkit, own_bundle: Bundle, trained: Path, models: Path, tmp_path: Path
) -> None:
    digits = read_digits()
    parts = {"x_train": digits.x_train, "y_train": digits.y_train}
    np.savez(tmp_path / "some.npz", x_test=digits.x_test[:50], y_test=digits.y_test[:50], **parts)
    ran = toolkit(
        *("requantise", own_bundle.folder, "--state", trained, "--quantisation", "float32"),
        *("--model", f"{models}:branch", "--data", tmp_path / "some.npz"),
    )
    assert (ran.code, ran.err) == (0, "")
    entry = open_bundle(own_bundle.folder).manifest.files[INFER]
    compared = entry.requantised["comparison"]
    assert (entry.requantised["quantisation"], compared["examples"]) == ("float32", 50)
    assert compared["accuracy"] == compared["float32_accuracy"] > 0.7
    assert compared["mean_difference"] < 1e-5
    assert entry.bytes > 4 * 3930  # float32 weights


def test_without_labels_the_answers_are_compared_all_the_same(
    toolkit: Toolkit, own_bundle: Bundle, trained: Path, models: Path
) -> None:
    arguments = ("--state", trained, "--quantisation", "dynamic", "--model", f"{models}:branch")
    ran = toolkit("requantise", own_bundle.folder, *arguments)
    assert (ran.code, ran.err) == (0, "")
    manifest = open_bundle(own_bundle.folder).manifest
    compared = manifest.files[INFER].requantised["comparison"]
    assert manifest.calibration == "synthetic images"
    assert (compared["accuracy"], compared["float32_accuracy"]) == (None, None)
    assert compared["examples"] == 64
    assert 0.8 < compared["same_answer"] <= 1
    assert 0 < compared["mean_difference"] < 0.02
    assert ran.out.splitlines()[1].endswith(" of 64 calibration examples (ai-edge-litert)")


# --- what is refused, with the bundle as it was --------------------------------------------------


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("wider", "the branch 'digits-of-mine' is not the one of {bundle}: tensor "
                  "'light_output/bias' is [11] here and [10] in the bundle."),
        ("scaled", "the branch 'digits-of-mine' is not the one of {bundle}: it takes "
                   "uint8[8, 8, 1] times "),
        ("bent", "the branch 'digits-of-mine' is not the one of {bundle}: "
                 "with the same weights it answers otherwise."),
        ("none", "{models} has no function 'none'."),
    ],
)  # fmt: skip
def test_another_branch_is_refused(
    toolkit: Toolkit,
    own_bundle: Bundle,
    trained: Path,
    models: Path,
    listing: Listing,
    function: str,
    sentence: str,
) -> None:
    before = listing(own_bundle.folder.parent)
    arguments = ("--state", trained, "--quantisation", "float32")
    ran = toolkit("requantise", own_bundle.folder, *arguments, "--model", f"{models}:{function}")
    assert ran.refusal.startswith(sentence.format(bundle=own_bundle.folder, models=models))
    assert listing(own_bundle.folder.parent) == before


def test_a_branch_that_is_not_the_zoos_needs_its_function(
    toolkit: Toolkit, own_bundle: Bundle, trained: Path
) -> None:
    branch = replace(own_bundle.manifest.branch, name="digits-light")
    write_manifest(own_bundle.folder, replace(own_bundle.manifest, branch=branch))
    assert toolkit("requantise", own_bundle.folder, "--state", trained).refusal == (
        f"the manifest of {own_bundle.folder} cannot tell how its branch 'digits-light' is built, "
        "which is not the zoo's; say --model FILE:function, as when it was exported."
    )


def test_a_bad_state_folder_is_refused(
    toolkit: Toolkit, own_bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    def refusal() -> str:
        said: str = toolkit("requantise", own_bundle.folder, "--state", tmp_path / "state").refusal
        return said

    assert refusal() == (
        f"there is no checkpoint in {tmp_path / 'state'}; a device's --state folder has one."
    )
    assert not (tmp_path / "state").exists()

    file = tmp_path / "state" / FILE
    file.parent.mkdir()
    stored = read_sealed(trained / FILE, "checkpoint")
    write_sealed(file, "checkpoint", {**stored.fields, "bundle": "0" * 64}, stored.tensors)
    assert refusal() == f"{file} belongs to another bundle; give another --state."

    name = "light_output/bias"
    broken = {**stored.tensors, f"learner/model/{name}": np.full(10, np.nan, np.float32)}
    write_sealed(file, "checkpoint", stored.fields, broken)
    assert refusal() == f"{file} holds a tensor {name!r} that is not finite."

    file.write_bytes((trained / FILE).read_bytes()[:-9])
    assert refusal().startswith(f"{file} cannot be read: ")


def test_data_of_another_kind_are_refused(
    toolkit: Toolkit, own_bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    arguments = ("requantise", own_bundle.folder, "--state", trained, "--data")
    assert toolkit(*arguments, tmp_path / "none.npz").refusal == (
        f"{tmp_path / 'none.npz'} cannot be read (No such file or directory)."
    )
    assert toolkit(*arguments, tmp_path).refusal.startswith(
        "the task cifar10 has examples of uint8[32, 32, 3]; "
    )


def test_a_state_inside_the_bundle_is_not_lost(
    toolkit: Toolkit, own_bundle: Bundle, trained: Path, listing: Listing
) -> None:
    inside = own_bundle.folder / "state"
    inside.mkdir()
    (inside / FILE).write_bytes((trained / FILE).read_bytes())
    before = listing(own_bundle.folder.parent)
    assert toolkit("requantise", own_bundle.folder, "--state", inside).refusal == (
        f"{own_bundle.folder} also holds state; "
        "move that elsewhere, so that the bundle can be replaced."
    )
    assert listing(own_bundle.folder.parent) == before


def test_a_model_that_does_not_run_leaves_the_bundle(
    toolkit: Toolkit,
    own_bundle: Bundle,
    trained: Path,
    listing: Listing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "toolkit.trained.requantise.convert_inference", lambda *arguments: b"\0" * 64
    )
    before = listing(own_bundle.folder.parent)
    ran = toolkit("requantise", own_bundle.folder, "--state", trained)
    assert ran.refusal.startswith("the quantised branch does not run in ai-edge-litert: ")
    assert listing(own_bundle.folder.parent) == before


def test_comparing_and_reading_weights_load_no_tensorflow() -> None:
    code = "import sys, toolkit.trained.comparison, toolkit.trained.weights\n"
    code += "print('tensorflow' in sys.modules)"
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=quiet, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
