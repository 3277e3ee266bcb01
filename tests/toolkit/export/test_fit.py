"""The widest branch that fits: found with few tries, measured, and exportable as it is said."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

import toolkit.export.bundle as stages
import toolkit.export.trial as trial
from firmware_sim.bundle.manifest import Measured
from profiles import Profile, load_profile
from toolkit.branch.branch import Branch
from toolkit.branch.user_model import load_branch
from toolkit.errors import ExportError
from toolkit.export.fit import FitLimits, Fitting, TriedWidth, fit, widest
from toolkit.export.memory_estimate import MemoryEstimate
from toolkit.training.module import TrainingModule

Toolkit = Callable[..., Any]

LIMITS = FitLimits(memory_bytes=128 * 2**20, storage_bytes=64 * 2**20)

# Width 2 has a million weights: their state alone is small enough, training them is not.
# From 3 on the operations are too many, which needs no training to know.
MODELS = """\
import keras
from keras import layers

def jumping(width):
    units = {1: 16, 2: 7_000}.get(width, 12_000)
    stem = layers.Conv2D(4, 3, activation="relu", name="stem")
    rest = [layers.Flatten(), layers.Dense(units), layers.Dense(2)]
    return keras.Sequential([keras.Input((8, 8, 1)), stem, *rest]), ["stem"]

def fixed():
    return jumping(1)

def number(width):
    return width

def two(width, depth):
    return jumping(width)

def broken(width):
    raise ValueError("no network today")

class Gamma(layers.Layer):
    def call(self, x):
        import tensorflow as tf
        return tf.math.lgamma(x)

def unsupported(width):
    stem = layers.Dense(width, name="stem")
    return keras.Sequential([keras.Input((4,)), stem, Gamma(name="my_gamma")]), ["stem"]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    return file


# --- the search, on needs that are known ---------------------------------------------------------


def tried(
    width: int, *, peak: float, step: float = 0.001, operations: int = 1, stored: int = 1
) -> TriedWidth:
    return TriedWidth(width, 10 * width, operations, 1, int(peak * 2**20), stored, step, 32)


@pytest.mark.parametrize(
    ("peak_mib", "answer"),
    [
        (lambda w: 50 + 0.01 * w**2, 88),
        (lambda w: 50 + 0.5 * w, 156),
        (lambda w: 50 + 0.00001 * w**4, 52),
        (lambda w: 60 if w < 37 else 900, 36),
        (lambda w: 60 if w < 2 else 129, 1),
        (lambda w: 60 + w // 64, 512),
        (lambda w: 127.9 if w < 512 else 128.1, 511),
    ],
    ids=["square", "linear", "steep", "jump", "only the least", "all", "all but the last"],
)
def test_the_search_ends_between_what_fits_and_what_does_not(
    peak_mib: Callable[[int], float], answer: int
) -> None:
    measured: list[int] = []

    def measure(width: int) -> TriedWidth:
        measured.append(width)
        return tried(width, peak=peak_mib(width))

    best = widest(measure, LIMITS, tried(1, peak=peak_mib(1)), 512)
    assert best.width == answer
    assert len(measured) == len(set(measured)), "nothing is measured twice"
    assert {answer, min(answer + 1, 512)} <= {1, *measured}, "both were measured"
    assert len(measured) <= 16


def test_a_smooth_need_takes_few_tries() -> None:
    measured: list[int] = []

    def measure(width: int) -> TriedWidth:
        measured.append(width)
        return tried(width, peak=60 + 0.02 * width**2 + 0.3 * width)

    assert widest(measure, LIMITS, measure(1), 512).width == 51
    assert len(measured) <= 7, measured


def test_the_tightest_limit_decides() -> None:
    limits = replace(LIMITS, operations=1000, step_seconds=0.010)
    needs = tried(8, peak=64, step=0.008, operations=900)
    assert (needs.fits(limits), needs.load(limits)) == (True, 0.9)
    needs = tried(9, peak=130.5, step=0.0125, operations=1900, stored=65 * 2**20)
    assert needs.load(limits) == 1.9
    assert needs.excess(limits) == (
        "2.5 MiB too much in training",
        "1.0 MiB too much on disk",
        "900 operations too many",
        "2.50 ms too long a step",
    )
    slow = replace(LIMITS, step_seconds=0.050)

    def measure(width: int) -> TriedWidth:
        return tried(width, peak=64, step=0.001 * width)

    assert widest(measure, slow, measure(1), 512).width == 50


@pytest.fixture
def known_needs(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Branch]:
    """Width w takes 60 + 10 w MiB, and w more for each sample of a micro-batch; nothing is run."""

    def convert(module: TrainingModule) -> bytes:
        return f"{module.branch.name} {module.micro_batch}".encode()

    def measure(branch: Branch, profile: Profile, model: Path) -> Measured:
        width, micro = map(int, model.read_text().split())
        peak = (60 + 10 * width + width * micro) * 2**20
        return Measured("none", "0", 1, peak, 0, 0.1)

    for module in (stages, trial):
        monkeypatch.setattr(module, "convert_module", convert)
        monkeypatch.setattr(module, "try_out", measure)
    for converted in ("convert_inference", "convert_prediction"):
        monkeypatch.setattr(stages, converted, lambda *arguments: b"")
    estimate = MemoryEstimate(0, 0, 0, 0, 0, 0, 0, 1)
    monkeypatch.setattr(stages, "estimate_memory", lambda *arguments: estimate)
    x = keras.Input((4,))
    tiny = Branch("tiny", keras.Model(x, keras.layers.Dense(2, name="stem")(x)), ("stem",))
    return lambda width: replace(tiny, name=str(width))


def test_a_width_is_judged_in_the_micro_batches_that_an_export_takes(
    known_needs: Callable[[int], Branch],
) -> None:
    found = fit(known_needs, load_profile("weak"), max_width=9)
    taken = {t.width: (t.micro_batch, (t.peak_bytes or 0) // 2**20) for t in found.tried}
    assert (found.best.width, taken[6]) == (6, (1, 126))  # of 127: a reserve is kept
    assert taken[1] == (32, 102)
    assert taken[7] == (1, 137), "refused even in micro-batches of one sample"
    for width, (micro, _) in taken.items():
        chosen = {1: 32, 2: 16, 3: 8, 4: 4, 5: 2}.get(width, 1)
        assert micro == chosen, width


def test_a_profile_too_small_for_the_least_width_says_by_how_much(
    known_needs: Callable[[int], Branch],
) -> None:
    tiny = replace(load_profile("weak"), name="tiny", memory_cap_mib=61)
    with pytest.raises(ExportError) as refused:
        fit(known_needs, tiny)
    assert str(refused.value) == (
        "even width 1 does not fit profile tiny: 11.0 MiB too much in training."
    )


# --- real exports --------------------------------------------------------------------------------


def test_the_answer_is_measured_and_so_is_the_next(
    toolkit: Toolkit, models: Path, tmp_path: Path
) -> None:
    model, profile = f"{models}:jumping", tmp_path / "small.toml"
    profile.write_text('extends = "weak"\nbatch_size = 1\n')  # no micro-batches are tried
    arguments = ("--profile", profile, "--model", model, "--max-operations", "1500000")
    ran = toolkit("fit", *arguments, "--max-width", "9", "--json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert (report["profile"], report["width"]) == ("small", 1)
    assert report["limits"] == {
        "memory_bytes": 127 * 2**20,  # an export keeps a reserve
        "storage_bytes": 64 * 2**20,
        "operations": 1_500_000,
        "step_seconds": None,
    }
    narrow, wide, *wider = report["tried"]
    assert (narrow["width"], narrow["fits"], narrow["excess"]) == (1, True, [])
    assert narrow["parameters"] == 40 + 16 * (6 * 6 * 4 + 1) + 2 * 17
    assert narrow["state_bytes"] == 3 * 4 * narrow["parameters"]  # Adam has two slots
    assert (wide["width"], wide["fits"]) == (2, False)
    assert wide["state_bytes"] < 128 * 2**20 < wide["peak_bytes"]
    assert narrow["peak_bytes"] < 128 * 2**20
    assert 0 < narrow["step_seconds"] < wide["step_seconds"]
    assert wide["excess"][0].endswith(" MiB too much in training")
    assert (narrow["micro_batch"], wide["micro_batch"]) == (1, 1)
    assert [t["width"] for t in wider] == [3, 4]
    for counted in wider:
        assert (counted["peak_bytes"], counted["step_seconds"]) == (None, None)
        assert [text.partition(" ")[2] for text in counted["excess"]] == ["operations too many"]

    command = shlex.split(report["export"])
    assert command == ["toolkit", "export", "--profile", str(profile), "--model", f"{model}:1"]
    branch = load_branch(command[-1])
    assert branch.name == "models-jumping-1"
    assert sum(w.size for w in branch.weights().values()) == narrow["parameters"]


def test_the_table_shows_what_was_tried() -> None:
    fits, slow = tried(3, peak=64, step=0.004, stored=2**21), tried(4, peak=70, step=0.006)
    limits = replace(LIMITS, step_seconds=0.005)
    counted = TriedWidth(9, 90, 1, 129 * 2**20)
    found = Fitting(load_profile("weak"), limits, fits, (fits, slow, counted))
    columns = [list(column.cells) for column in found.table().columns]
    assert columns[0] == ["3", "4", "9"]
    assert columns[3] == ["64.0", "70.0", ""]
    assert columns[4] == ["2.0", "0.0", ""]
    assert columns[5] == ["4.00", "6.00", ""]
    assert columns[6] == ["32", "32", ""]
    assert columns[7] == [
        "widest",
        "1.00 ms too long a step",
        "1.0 MiB too much for weights and optimiser alone",
    ]
    assert found.command("my board.toml", "a b.py:branch") == (
        "toolkit export --profile 'my board.toml' --model 'a b.py:branch:3'"
    )


# --- refused with one sentence -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "options", "sentence"),
    [
        ("fixed", (), "{file}:fixed does not take a width; it must be as def branch(width): …."),
        ("two", (), "{file}:two does not take a width; it must be as def branch(width): …."),
        ("number", (), "{file}:number:1 returned int; it must return a Keras model, "
                       "or (model, names of the shared layers)."),
        ("broken", (), "{file}:broken:1 failed with ValueError: no network today"),
        ("none", (), "{file} has no function 'none'."),
        ("unsupported", (), "layer 'my_gamma' needs the operation Lgamma, which cannot be "
                            "trained with TFLite's builtin operations."),
        ("jumping", ("--min-width", "9", "--max-width", "8"),
         "the least width 9 is above the greatest, 8."),
        ("jumping", ("--max-operations", "1000"), "even width 1 does not fit profile weak: "),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(
    toolkit: Toolkit, models: Path, function: str, options: tuple[str, ...], sentence: str
) -> None:
    ran = toolkit("fit", "--profile", "weak", "--model", f"{models}:{function}", *options)
    assert ran.refusal.startswith(sentence.format(file=models))


def test_export_wants_the_width_of_a_function_that_takes_one(
    toolkit: Toolkit, models: Path
) -> None:
    model = f"{models}:jumping"
    assert toolkit("export", "--profile", "weak", "--model", model).refusal == (
        f"{model} takes arguments; only a width can be given, as {model}:16."
    )
