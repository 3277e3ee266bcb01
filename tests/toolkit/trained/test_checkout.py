"""The trained model out: every file answers as the device does, and nothing is lost on the way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

from broker.aggregator.storage.store import SNAPSHOT, Identity, Snapshot, write_snapshot
from broker.durable import read_sealed, write_sealed
from broker.merging.coordinator import State
from firmware_sim.bundle.reader import BRANCH, Bundle, open_bundle, write_manifest
from firmware_sim.tasks.digits import FILE as DIGITS
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tensor_spec import Array
from firmware_sim.training.checkpoint import FILE
from firmware_sim.training.runtime import Model
from toolkit.trained.weights import read_weights

Toolkit = Callable[..., Any]
Listing = Callable[[Path], dict[str, bytes]]


def device_with(bundle: Bundle, state: Mapping[str, Array]) -> Model:
    model = Model(bundle.model)
    model.call("set_state", **{**model.call("get_state"), **state})
    return model


def answers_of(model: Model, x: Array) -> Array:
    return np.concatenate([model.call("infer", x=one[None])["output"] for one in x])


def test_keras_tflite_and_onnx_answer_as_the_device(
    toolkit: Toolkit, digits_bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("keras", "tflite", "onnx")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", path)]
    options += ["--slice", tmp_path / "out.safetensors"]
    command = ("checkout", digits_bundle.folder, "--state", trained, "--data", DIGITS, *options)
    ran = toolkit(*command)
    assert (ran.code, ran.err) == (0, "")

    x, y = read_digits().x_test, read_digits().y_test
    state = read_weights(digits_bundle, trained).state
    wanted = answers_of(device_with(digits_bundle, state), x)
    assert np.mean(wanted.argmax(-1) == y) > 0.8

    model = keras.models.load_model(files["keras"])
    assert [layer.name for layer in model.layers[1:3]] == ["stem_conv1", "stem_conv2"]
    np.testing.assert_allclose(model.predict(x / np.float32(16), verbose=0), wanted, atol=1e-5)
    np.testing.assert_allclose(answers_of(Model(files["tflite"]), x), wanted, atol=1e-5)
    session = onnxruntime.InferenceSession(files["onnx"], providers=["CPUExecutionProvider"])
    found = np.concatenate([session.run(["output"], {"x": one[None]})[0] for one in x])
    np.testing.assert_allclose(found, wanted, atol=1e-5)

    shared = load_file(tmp_path / "out.safetensors")
    assert shared.keys() == {tensor.name for tensor in digits_bundle.manifest.shared.tensors}
    for name, value in shared.items():
        np.testing.assert_array_equal(value, state[name])

    head, *lines = ran.out.splitlines()
    assert head == "the weights of pi-7 after 2 rounds"
    assert [line.partition(":")[0] for line in lines] == [
        *map(str, files.values()),
        str(tmp_path / "out.safetensors"),
    ]
    accuracy = f"{np.mean(wanted.argmax(-1) == y):.1%}"
    assert lines[0].endswith(
        f"the same answer to 100.0% of 360 test examples (ai-edge-litert); "
        f"accuracy {accuracy}, on the device {accuracy}"
    )

    before = {path: path.read_bytes() for path in files.values()}
    assert toolkit(*command).refusal == f"{files['keras']} exists; --force replaces it."
    assert {path: path.read_bytes() for path in files.values()} == before
    files["keras"].write_bytes(b"other")
    only = ("checkout", digits_bundle.folder, "--state", trained, "--keras", files["keras"])
    assert toolkit(*only, "--force").code == 0
    assert len(files["keras"].read_bytes()) > 1000


def test_int8_is_compared_with_the_device(
    toolkit: Toolkit, digits_bundle: Bundle, trained: Path, tmp_path: Path, listing: Listing
) -> None:
    before = listing(digits_bundle.folder)
    out = tmp_path / "out.tflite"
    command = ("checkout", digits_bundle.folder, "--state", trained, "--data", DIGITS)
    ran = toolkit(*command, "--tflite", out, "--int8", "--json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    written = report["files"]["tflite"]
    model, x, y = Model(out), read_digits().x_test, read_digits().y_test
    assert model.inputs("infer")["x"].dtype == np.uint8
    found = answers_of(model, x)
    assert written["accuracy"] == pytest.approx(np.mean(found.argmax(-1) == y))
    assert report["device_accuracy"] > 0.8
    assert abs(written["accuracy"] - report["device_accuracy"]) < 0.05
    assert 0.95 < written["same_answer"] <= 1
    assert 1e-4 < written["largest_difference"] < 0.3
    assert written["bytes"] == out.stat().st_size < 3930 * 4
    assert report["ranges"] == "training examples of digits.npz"
    assert listing(digits_bundle.folder) == before


# --- a fleet's weights ---------------------------------------------------------------------------


def snapshot(folder: Path, shared: dict[str, Array]) -> Path:
    folder.mkdir()
    identity = asdict(Identity("garden", "0" * 64, "sync", "delta", "add"))
    write_snapshot(folder / SNAPSHOT, Snapshot(identity, 1, State("run", 7, shared, {})))
    return folder


def test_the_fleets_shared_weights_take_the_place_of_the_devices(
    toolkit: Toolkit, digits_bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    mine = read_weights(digits_bundle, trained).state
    names = [tensor.name for tensor in digits_bundle.manifest.shared.tensors]
    theirs = {name: mine[name] + np.float32(0.01) for name in names}
    folder = snapshot(tmp_path / "aggregator", theirs)
    out = tmp_path / "out.keras"
    command = ("checkout", digits_bundle.folder, "--keras", out)
    ran = toolkit(*command, "--state", trained, "--shared", folder)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == (
        f"the weights of pi-7 after 2 rounds, with {folder / SNAPSHOT} after round 7"
    )
    model = keras.models.load_model(out)
    kernel = model.get_layer("stem_conv1").kernel
    np.testing.assert_array_equal(np.asarray(kernel), theirs["stem_conv1/kernel"])
    np.testing.assert_array_equal(
        np.asarray(model.get_layer("light_output").kernel), mine["light_output/kernel"]
    )

    said = toolkit(*command, "--force", "--shared", folder).refusal
    assert said == (
        f"{digits_bundle.folder} keeps 'light_output/bias' on the device, and {folder / SNAPSHOT} "
        "after round 7 does not have it; give --state with the folder of a device's checkpoint."
    )
    save_file({"stem_conv1/kernel": theirs["stem_conv1/kernel"]}, tmp_path / "one.safetensors")
    said = toolkit(*command, "--force", "--shared", tmp_path / "one.safetensors").refusal
    assert said == (
        f"{tmp_path / 'one.safetensors'} lacks tensor 'stem_conv1/bias', which the bundle shares."
    )


# --- a branch with code of its own ---------------------------------------------------------------

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
def without_branch(digits_bundle: Bundle, tmp_path: Path) -> Path:
    """A bundle as an export writes it for layers with code of their own."""
    folder = tmp_path / "bundle"
    shutil.copytree(digits_bundle.folder, folder)
    (folder / BRANCH).unlink()
    files = {n: e for n, e in digits_bundle.manifest.files.items() if n != BRANCH}
    write_manifest(folder, replace(digits_bundle.manifest, files=files))
    return folder


def test_a_branch_with_code_of_its_own_is_made_by_its_function(
    toolkit: Toolkit, without_branch: Path, trained: Path, tmp_path: Path
) -> None:
    models, out = tmp_path / "models.py", tmp_path / "out.keras"
    models.write_text(MODELS)
    command = ("checkout", without_branch, "--state", trained, "--keras", out)
    assert toolkit(*command).refusal == (
        f"{without_branch} does not hold its branch, as where layers have code of their own; "
        "give --model FILE.py:function, as when it was exported."
    )
    other = f"the branch 'digits-of-mine' is not the one of {without_branch}: "
    for function, sentence in {
        "wider": other + "tensor 'light_output/bias' is [11] here and [10] in the bundle.",
        "scaled": other + "it takes uint8[8, 8, 1] times 1.0, and the bundle uint8[8, 8, 1] times "
        "0.0625.",
        "bent": other + "with the same weights it answers otherwise.",
        "none": f"{models} has no function 'none'.",
    }.items():
        assert toolkit(*command, "--model", f"{models}:{function}").refusal == sentence
    assert not out.exists()
    assert toolkit(*command, "--model", f"{models}:branch").code == 0
    state = read_weights(open_bundle(without_branch), trained).state
    kernel = keras.models.load_model(out).get_layer("light_output").kernel
    np.testing.assert_array_equal(np.asarray(kernel), state["light_output/kernel"])


# --- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be_written_is_one_sentence(
    toolkit: Toolkit, digits_bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    command, state = ("checkout", digits_bundle.folder), ("--state", trained)
    out = ("--keras", tmp_path / "out.keras")
    for options, sentence in [
        (state, "nothing to write: give --keras, --tflite, --onnx or --slice."),
        (out, "whose weights? Give --state of a device, --shared with the fleet's snapshot, or "
              "both."),
        ((*state, "--onnx", tmp_path / "out.keras"),
         f"the file of --onnx must end in .onnx, unlike {tmp_path / 'out.keras'}."),
        ((*state, "--keras", tmp_path / "none" / "out.keras"),
         f"there is no folder {tmp_path / 'none'}."),
        ((*state, *out, "--int8"),
         "--int8, --float16 and --dynamic are about --tflite: give one of them."),
        ((*state, *out, "--data", tmp_path / "none.npz"),
         f"{tmp_path / 'none.npz'} cannot be read (No such file or directory)."),
        ((*out, "--shared", tmp_path),
         f"{tmp_path} is neither a bundle nor the state folder of an aggregator."),
    ]:  # fmt: skip
        assert toolkit(*command, *options).refusal == sentence
    assert toolkit(*command, *state, *out, "--data", tmp_path).refusal.startswith(
        "the task cifar10 has examples of uint8[32, 32, 3]; "
    )
    assert not list(tmp_path.iterdir())


def test_a_bad_state_folder_is_refused(
    toolkit: Toolkit, digits_bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    def refusal() -> str:
        command = ("checkout", digits_bundle.folder, "--keras", tmp_path / "out.keras")
        said: str = toolkit(*command, "--state", tmp_path / "state").refusal
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


def test_reading_weights_and_evaluating_load_no_tensorflow() -> None:
    code = "import sys, toolkit.trained.evaluation, toolkit.trained.checkout\n"
    code += "print('tensorflow' in sys.modules)"
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=quiet, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
