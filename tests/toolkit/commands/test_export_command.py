"""`toolkit export`: what it prints, and one sentence for everything a user can get wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.aggregator.slice_file import read_slice
from firmware_sim.bundle.reader import Bundle, open_bundle

Toolkit = Callable[..., Any]
Listing = Callable[[Path], dict[str, bytes]]
TOOLKIT = Path(sys.executable).with_name("toolkit")


def really(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, as a user runs it."""
    loud = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return subprocess.run(
        [TOOLKIT, *arguments], cwd=cwd, env=loud, capture_output=True, text=True, timeout=180
    )


def test_a_model_of_five_lines_is_exported(
    toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_branch.py").write_text(
        "import keras\n"
        "from keras import layers\n"
        "def branch():\n"
        "    stem = layers.Conv2D(4, 3, activation='relu', name='stem')\n"
        "    rest = [layers.Flatten(), layers.Dense(3, activation='softmax', name='head')]\n"
        "    return keras.Sequential([keras.Input((8, 8, 1)), stem, *rest]), ['stem']\n"
    )
    ran = toolkit("export", "--profile", "weak", "--model", "my_branch.py:branch")
    assert (ran.code, ran.err) == (0, "")
    first, second = ran.out.splitlines()
    assert first.startswith("build/weak: my_branch-branch; model.tflite ")
    assert second.startswith("a device takes ")
    assert "of the profile's 128 MiB (estimated: " in second
    assert " in micro-batches of 32; " in second

    bundle = open_bundle(tmp_path / "build" / "weak")
    manifest = bundle.manifest
    assert manifest.branch.name == "my_branch-branch"
    assert manifest.branch.parameters == 4 * 10 + 3 * (6 * 6 * 4 + 1)
    assert manifest.branch.shared_parameters == 4 * 10
    assert [t.name for t in manifest.shared.tensors] == ["stem/kernel", "stem/bias"]
    assert 0 < bundle.measured.peak_bytes < 128 * 2**20
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["weak"]


PAIR = """\
import keras
from keras import layers

def weak():
    stem = layers.Conv1D(4, 3, activation="relu")
    rest = [layers.GlobalMaxPooling1D(), layers.Dense(2, activation="softmax")]
    return keras.Sequential([keras.Input((8, 3)), stem, *rest])

def strong():
    stem = layers.Conv1D(4, 3, activation="relu")
    rest = [layers.Flatten(), layers.Dense(5, activation="relu"), layers.Dense(2)]
    return keras.Sequential([keras.Input((8, 3)), stem, *rest])
"""


def test_two_networks_without_names_become_one_fleet(toolkit: Toolkit, tmp_path: Path) -> None:
    file, weak, both = tmp_path / "pair.py", tmp_path / "weak", tmp_path / "powerful"
    file.write_text(PAIR)
    assert (
        toolkit("export", "--profile", "weak", "--model", f"{file}:weak", "--out", weak).code == 0
    )
    pair = ("--model", f"{file}:strong", "--cascade", f"{file}:weak")
    ran = toolkit("export", "--profile", "powerful", *pair, "--out", both)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{both}: pair-strong-cascade; model.tflite ")

    light, full = open_bundle(weak).manifest, open_bundle(both).manifest
    shared = ["conv1d/kernel", "conv1d/bias", "dense/kernel", "dense/bias"]
    assert [tensor.name for tensor in light.shared.tensors] == shared
    assert light.shared == full.shared
    assert light.branch.parameters == full.branch.shared_parameters == 4 * 10 + 2 * 5
    assert full.branch.parameters == 4 * 10 + 2 * 5 + 5 * (6 * 4 + 1) + 2 * 6
    assert full.branch.learning["early_output"] == "dense"
    assert "early_output" not in light.branch.learning
    starts = [read_slice(folder / "shared.onnx")[1] for folder in (weak, both)]
    for name in shared:  # whichever slice the aggregator takes first
        np.testing.assert_array_equal(starts[0][name], starts[1][name])

    said = toolkit("inspect", both).out
    assert "a cascade with a loss at both outputs, its own and that of layer dense\n" in said
    assert "a cascade" not in toolkit("inspect", weak).out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--task", "digits", "--share", "all"),
         "--cascade, --branch-dropout and --share need --model."),
        (("--model", "pair.py:strong", "--branch-dropout", "0.5"),
         "--branch-dropout is about a cascade: give --cascade too."),
        (("--model", "pair.py:strong", "--cascade", "pair.py:wek"),
         "pair.py has no function 'wek'."),
        (("--model", "pair.py:strong", "--cascade", "pair.py:weak", "--share", "conv1d"),
         "in a cascade the whole weak network is shared, and pair-weak keeps dense/bias, "
         "dense/kernel; let its function return the model alone, or give --share all."),
    ],
)  # fmt: skip
def test_a_bad_cascade_is_refused(
    toolkit: Toolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pair.py").write_text(PAIR)
    assert toolkit("export", "--profile", "powerful", *options).refusal == sentence
    assert not Path("build").exists()


SMALL = """\
import keras

def branch():
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(2, name="stem")(x)), ["stem"]
"""


def test_a_script_gets_the_manifest_and_no_noise_of_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    model = ("--model", "small.py:branch")
    ran = really("--quiet", "export", "--profile", "weak", *model, "--json", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert told.pop("bundle") == "build/weak"
    assert told == open_bundle(tmp_path / "build" / "weak").manifest.to_json()


# --- export refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "Profile {file} does not exist."),
        ("threads = = 2\n", "Profile {file} is not valid TOML: Invalid value (at line 1, column "),
        ('extends = "weak"\nthreads = 0\n', "In profile {file}, key 'threads' must be an integer"),
    ],
    ids=["missing", "malformed", "out of range"],
)
def test_a_bad_profile_file_is_refused(
    toolkit: Toolkit, tmp_path: Path, content: str | None, sentence: str
) -> None:
    file = tmp_path / "board.toml"
    if content is not None:
        file.write_text(content)
    ran = toolkit("export", "--profile", file, "--out", tmp_path / "out")
    assert ran.refusal.startswith(sentence.format(file=file))
    assert not (tmp_path / "out").exists()


def test_an_unknown_profile_is_refused_in_a_real_process(tmp_path: Path) -> None:
    ran = really("export", "--profile", "wek", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "error: Profile wek is not shipped; the shipped ones are 'gateway', 'powerful', "
        "'raspberry-pi-5', 'raspberry-pi-zero-2', 'weak' (did you mean 'weak'?).\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["-1", str(2**32), "one"])
def test_a_seed_out_of_range_is_a_usage_error(toolkit: Toolkit, seed: str, tmp_path: Path) -> None:
    ran = toolkit("export", "--profile", "weak", "--seed", seed, "--out", tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert "Invalid value for '--seed'" in ran.err
    assert not (tmp_path / "out").exists()


MODELS = """\
import sys
import keras
import tensorflow as tf
from keras import layers

from toolkit.branch import Branch, Supervised


def ends(*parts, shape=(8, 8, 1)):
    return keras.Sequential([keras.Input(shape), *parts, layers.Flatten(), layers.Dense(2)])


class LogGamma(layers.Layer):
    def build(self, shape):
        self.shift = self.add_weight(shape=shape[1:], name="shift")

    def call(self, x):
        return tf.math.lgamma(x + self.shift)


def raises():
    raise ValueError("several\\nlines, and [/red] brackets")

def exits():
    sys.exit(0)

def number():
    return 7

def names_are_a_string():
    return ends(layers.Dense(2, name="stem")), "stem"

def unsupported():
    return ends(LogGamma(name="my_gamma")), ["my_gamma"]

def absent():
    return ends(layers.Conv2D(2, 3, name="stem")), ["trunk"]

def nothing_shared():
    return ends(layers.ReLU(name="bend")), ["bend"]

def unbuilt():
    return keras.Sequential([layers.Dense(2, name="stem")]), ["stem"]

def any_size():
    x = keras.Input((None, None, 3))
    y = layers.GlobalMaxPooling2D()(layers.Conv2D(2, 3, name="stem")(x))
    return keras.Model(x, y), ["stem"]

def two_inputs():
    a, b = keras.Input((4,)), keras.Input((4,))
    return keras.Model([a, b], layers.Dense(2, name="stem")(layers.Add()([a, b]))), ["stem"]

def picture():
    x = keras.Input((8, 8, 1))
    model = keras.Model(x, layers.Conv2D(2, 3, name="stem")(x))
    return Branch("models-picture", model, ("stem",), Supervised(target="class"))

def halves():
    return ends(layers.Conv2D(2, 3, name="stem", dtype="mixed_bfloat16")), ["stem"]

def not_finite():
    nan = keras.initializers.Constant(float("nan"))
    return ends(layers.Dense(2, kernel_initializer=nan, name="stem")), ["stem"]

variable = 3
"""


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("missing", "{file} has no function 'missing'."),
        ("variable", "{file} has no function 'variable'."),
        ("raises", "{file}:raises failed with ValueError: several lines, and [/red] brackets"),
        ("exits", "{file}:exits failed with SystemExit: 0"),
        ("number", "{file}:number returned int; it must return a Keras model, "
                   "or (model, names of the shared layers)."),
        ("names_are_a_string", "{file}:names_are_a_string returned tuple; it must return a Keras "
                               "model, or (model, names of the shared layers)."),
        ("unsupported", "layer 'my_gamma' needs the operation Lgamma, which cannot be trained "
                        "with TFLite's builtin operations."),
        ("absent", "the branch shares layer 'trunk', which the model does not have; "
                   "its layers are "),
        ("nothing_shared", "the branch shares no layer that has weights; name at least one."),
        ("unbuilt", "the model of models-unbuilt has no input shape; begin it with keras.Input."),
        ("any_size", "the model of models-any_size takes (None, None, None, 3); "
                     "it must be one input of fixed shape."),
        ("two_inputs", "the model of models-two_inputs takes [(None, 4), (None, 4)]; a branch has "
                       "one input: return toolkit.branch.one_input.one_input(model), and give it "
                       "rows."),
        ("picture", "the model of models-picture answers (None, 6, 6, 2); for the target 'class' "
                    "it must be (None, classes)."),
        ("halves", "layer 'stem' computes in mixed_bfloat16; only float32 can train."),
        ("not_finite", "the slice has tensor 'stem/kernel', which is not finite."),
    ],
)  # fmt: skip
def test_a_bad_model_is_refused(
    toolkit: Toolkit, tmp_path: Path, function: str, sentence: str
) -> None:
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    model, out = f"{file}:{function}", tmp_path / "out"
    ran = toolkit("export", "--profile", "weak", "--model", model, "--out", out)
    assert ran.refusal.startswith(sentence.format(file=file))
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["models.py"]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("models.py", "--model 'models.py' must be path/to/file.py:function."),
        ("models.py:", "--model 'models.py:' must be path/to/file.py:function."),
        (":branch", "--model ':branch' must be path/to/file.py:function."),
        ("none.py:branch", "there is no file none.py."),
        ("text.txt:branch", "text.txt is not a Python file."),
        ("broken.py:branch", "broken.py failed with SyntaxError: "),
        ("importing.py:branch", "importing.py failed with ModuleNotFoundError: No module named "),
        ("exiting.py:branch", "exiting.py failed with SystemExit: 0"),
    ],
)
def test_a_bad_model_file_is_refused(
    toolkit: Toolkit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("no code")
    Path("broken.py").write_text("def branch(:\n    pass\n")
    Path("importing.py").write_text("import a_module_that_is_not_there\n")
    Path("exiting.py").write_text("raise SystemExit(0)\n")
    ran = toolkit("export", "--profile", "weak", "--model", model)
    assert ran.refusal.startswith(sentence)
    assert not Path("build").exists()


def test_an_output_below_a_file_is_refused(
    toolkit: Toolkit, tmp_path: Path, listing: Listing
) -> None:
    (tmp_path / "file").write_text("mine")
    before = listing(tmp_path)
    for out, why in (("file/out", "File exists"), ("file/a/b", "Not a directory")):
        ran = toolkit("export", "--profile", "weak", "--task", "digits", "--out", tmp_path / out)
        assert ran.refusal == f"cannot write the bundle to {tmp_path / out} ({why})."
        assert listing(tmp_path) == before


def test_a_folder_that_is_no_bundle_is_not_replaced(
    toolkit: Toolkit, tmp_path: Path, listing: Listing
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    before = listing(tmp_path)
    for out in ("photos", "photos/cat.jpg"):
        ran = toolkit("export", "--profile", "weak", "--task", "digits", "--out", tmp_path / out)
        assert ran.refusal == (
            f"{tmp_path / out} exists and is not a bundle; it will not be replaced."
        )
        assert listing(tmp_path) == before


DIGITS = np.zeros((3, 8, 8, 1), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (None, "{file} cannot be read (No such file or directory)."),
        (b"", "{file} cannot be read as .npz (No data left in file)."),
        (b"PK\x03\x04 garbage", "{file} cannot be read as .npz (File is not a zip file)."),
        (b"\x80\x04 garbage", "{file} cannot be read as .npz (Cannot load file containing "),
        (DIGITS, "{file} must be an .npz file with the array x."),
        ({"pictures": DIGITS}, "{file} must be an .npz file with the array x."),
        ({"x": DIGITS[:, :7]}, "{file} holds uint8[7, 8, 1] examples; the branch takes "
                               "uint8[8, 8, 1]."),
        ({"x": DIGITS.astype(np.float32)}, "{file} holds float32[8, 8, 1] examples; the branch "
                                           "takes uint8[8, 8, 1]."),
        ({"x": DIGITS[:0]}, "{file} must hold at least one example, and only finite numbers."),
    ],
    ids=["missing", "empty", "no zip", "pickle", "npy", "no x", "shape", "dtype", "no examples"],
)  # fmt: skip
def test_a_bad_calibration_file_is_refused(
    toolkit: Toolkit, tmp_path: Path, arrays: object, sentence: str
) -> None:
    file = tmp_path / "examples.npz"
    match arrays:
        case bytes():
            file.write_bytes(arrays)
        case np.ndarray():
            with file.open("wb") as opened:
                np.save(opened, arrays)
        case dict():
            np.savez(file, **arrays)
    arguments = ("--task", "digits", "--calibration", file, "--out", tmp_path / "out")
    ran = toolkit("export", "--profile", "weak", *arguments)
    assert ran.refusal.startswith(sentence.format(file=file))
    assert not (tmp_path / "out").exists()


def test_a_branch_that_needs_more_memory_than_the_profile_has_is_refused(
    toolkit: Toolkit, own_bundle: Bundle, tmp_path: Path, listing: Listing
) -> None:
    tiny = 'extends = "weak"\nmemory_cap_mib = 10\nbatch_size = 1\n'  # no micro-batches are tried
    (tmp_path / "tiny.toml").write_text(tiny)
    before = listing(tmp_path)
    arguments = ("--profile", tmp_path / "tiny.toml", "--task", "digits")
    sentence = toolkit("export", *arguments, "--out", own_bundle.folder).refusal
    assert sentence.startswith("training takes ")
    assert int(sentence.split()[2]) > 10
    assert " MiB even in micro-batches of 1, " in sentence
    assert sentence.endswith(
        " MiB more than profile tiny leaves of its 10 MiB; "
        "a branch with fewer or narrower layers would take less."
    )
    assert listing(tmp_path) == before
