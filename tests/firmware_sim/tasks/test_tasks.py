"""Tasks with labelled examples: shares, training, going on after a restart, refusals."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.bundle.manifest import Manifest, parse
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.make_task import TASKS, TaskOptions, make_task
from firmware_sim.errors import TaskError
from firmware_sim.tasks.digits import digit_images, read_digits
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.runtime import Model
from firmware_sim.training.task import Task
from tests.harness.manifests import a_manifest, inputs

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture
def model(digits_bundle: Bundle) -> Model:
    return Model(digits_bundle.model, runtime="ai-edge-litert")


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TaskError) as caught:
        call()
    return str(caught.value)


def with_inputs(bundle: Bundle, **specs: tuple[Any, ...]) -> Bundle:
    """The same folder, with a manifest that states something else about `train`."""
    takes = inputs(**specs)
    batch = next(iter(takes.values())).shape[0]
    found = a_manifest(signatures={"train": takes}, batch_size=batch)
    return replace(bundle, manifest=parse(_as_earlier(found), bundle.folder))


def _as_earlier(manifest: Manifest) -> dict[str, Any]:
    """As in a bundle of an earlier version, which states no target."""
    table = manifest.to_json()
    del table["branch"]["target"]
    return table


# --- the digits of the package -------------------------------------------------------------------


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    published = load_digits()
    images, labels = digit_images()
    assert (images.dtype.name, images.shape) == ("uint8", (1797, 8, 8, 1))
    assert (labels.dtype.name, labels.shape) == ("int32", (1797,))
    np.testing.assert_array_equal(images[..., 0], published.images)
    np.testing.assert_array_equal(labels, published.target)


def test_every_fifth_digit_is_for_the_test() -> None:
    images, labels = digit_images()
    examples = read_digits()
    np.testing.assert_array_equal(examples.x_test, images[::5])
    np.testing.assert_array_equal(examples.y_test, labels[::5])
    rest = [i for i in range(1797) if i % 5]
    np.testing.assert_array_equal(examples.x_train, images[rest])
    np.testing.assert_array_equal(examples.y_train, labels[rest])


# --- shares --------------------------------------------------------------------------------------


def write(file: Path, **changes: Any) -> Path:
    """A .npz file of 103 images that differ: their number is their first pixel and their label."""
    x = np.zeros((103, 8, 8, 1), np.uint8)
    x[:, 0, 0, 0] = np.arange(103)
    y = np.arange(103, dtype=np.int32)
    arrays: dict[str, Any] = {
        "x_train": x,
        "y_train": y,
        "x_test": x[:7],
        "y_test": y[:7],
    } | changes
    np.savez(file, **{name: value for name, value in arrays.items() if value is not None})
    return file


class Recorder:
    """Stands for a model, and keeps the labels and first pixels that it is shown."""

    signatures = ("train", "accumulate")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.calls: list[str] = []
        self.pixels: list[int] = []
        self.labels: list[int] = []

    def call(self, signature: str, /, *, x: Any, y: Any) -> dict[str, Any]:
        self.calls.append(signature)
        self.pixels += x[:, 0, 0, 0].tolist()
        self.labels += y.tolist()
        return {"loss": np.float32(0)}

    def inputs(self, signature: str) -> dict[str, TensorSpec]:
        x = TensorSpec((self.batch, 8, 8, 1), np.dtype(np.uint8))
        return {"x": x, "y": TensorSpec((self.batch,), np.dtype(np.int32))}


def held(task: Task) -> list[int]:
    """The examples of a task whose batches are of one example: one pass over them."""
    recorder = Recorder(batch=1)
    list(task.train(recorder, task.samples, "delta"))  # type: ignore[arg-type]
    assert recorder.pixels == recorder.labels
    return recorder.pixels


@pytest.mark.parametrize("cuts", [(0, 1), (0, 0.5, 1), (0, 0.05, 1), (0, 0.1, 0.3, 0.35, 0.9, 1)])
def test_adjoining_shares_hold_every_example_once(
    digits_bundle: Bundle, tmp_path: Path, cuts: tuple[float, ...]
) -> None:
    single = with_inputs(digits_bundle, x=("uint8", 1, 8, 8, 1), y=("int32", 1))
    data = write(tmp_path / "own.npz")
    tasks = [
        make_task("npz", single, TaskOptions(data=data, share=share, seed=seed))
        for seed, share in enumerate(pairwise(cuts))
    ]
    sets = [held(task) for task in tasks]
    assert [task.samples for task in tasks] == [len(one) for one in sets]
    assert sorted(i for one in sets for i in one) == list(range(103))
    for (start, stop), one in zip(pairwise(cuts), sets, strict=True):
        assert abs(len(one) - (stop - start) * 103) <= 1
        assert len(one) < 10 or one != sorted(one)


def test_a_share_does_not_depend_on_the_seed(digits_bundle: Bundle, tmp_path: Path) -> None:
    single = with_inputs(digits_bundle, x=("uint8", 1, 8, 8, 1), y=("int32", 1))
    data = write(tmp_path / "own.npz")
    one, other = (
        held(make_task("npz", single, TaskOptions(data=data, share=(0.2, 0.6), seed=seed)))
        for seed in (0, 1)
    )
    assert sorted(one) == sorted(other)
    assert one != other, "the seed decides the order"
    assert sorted(one) != list(range(min(one), max(one) + 1)), "a share is mixed"


@pytest.mark.parametrize(
    ("exchange", "signature"), [("delta", "train"), ("gradient", "accumulate")]
)
def test_what_is_exchanged_decides_the_signature(
    digits_bundle: Bundle, exchange: str, signature: str
) -> None:
    recorder = Recorder(batch=32)
    task = make_task("digits", digits_bundle, TaskOptions())
    assert list(task.train(recorder, 3, exchange)) == [0.0] * 3  # type: ignore[arg-type]
    assert recorder.calls == [signature] * 3


# --- with a real bundle --------------------------------------------------------------------------


def test_a_share_of_digits_is_learnt(digits_bundle: Bundle, model: Model) -> None:
    task = make_task("digits", digits_bundle, TaskOptions(share=(0, 0.5), seed=1))
    assert task.samples == round(0.5 * 1437)
    before = task.evaluate(model)
    losses = list(task.train(model, 150, "delta"))
    after = task.evaluate(model)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    assert after["loss"] < 0.6 * before["loss"]
    assert before["accuracy"] < 0.4
    assert after["accuracy"] > 0.75


def test_evaluating_equals_the_plain_computation(digits_bundle: Bundle, model: Model) -> None:
    task = make_task("digits", digits_bundle, TaskOptions())
    list(task.train(model, 30, "delta"))
    images, labels = (part[::5] for part in digit_images())
    answers = np.array([model.call("infer", x=one[None])["output"][0] for one in images])
    score = task.evaluate(model)
    recalls = {f"recall_{digit}" for digit in range(10)}
    assert score.keys() == {"loss", "accuracy", "mean_recall"} | recalls
    for digit in range(10):
        own = answers[labels == digit]
        assert score[f"recall_{digit}"] == np.mean(np.argmax(own, 1) == digit)
    assert score["accuracy"] == np.mean(np.argmax(answers, 1) == labels)
    plain = np.mean(-np.log(answers[np.arange(len(labels)), labels]))
    assert score["loss"] == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_a_restored_task_goes_on_bit_for_bit(
    digits_bundle: Bundle, model: Model, exchange: str
) -> None:
    options = TaskOptions(share=(0.3, 0.4), seed=5)  # 144 examples: a pass is 4.5 batches
    task = make_task("digits", digits_bundle, options)
    list(task.train(model, 7, exchange))
    remembered, weights = task.state(), model.call("get_state")
    weights = {name: value.copy() for name, value in weights.items()}
    expected = list(task.train(model, 5, exchange))

    fresh = Model(digits_bundle.model, runtime="ai-edge-litert")
    fresh.call("set_state", **weights)
    # The seed comes with the state.
    again = make_task("digits", digits_bundle, replace(options, seed=99))
    again.restore(remembered)
    assert list(again.train(fresh, 5, exchange)) == expected
    for name, value in model.call("get_state").items():
        np.testing.assert_array_equal(value, fresh.call("get_state")[name])
    later, same = task.state(), again.state()
    assert later.keys() == same.keys()
    assert all(np.array_equal(later[name], same[name]) for name in later)
    assert {name: int(later[name]) for name in ("seed", "epoch", "position")} == {
        "seed": 5,
        "epoch": 12 * 32 // 144,
        "position": 12 * 32 % 144,
    }


def test_stopping_early_leaves_the_task_between_two_batches(
    digits_bundle: Bundle, model: Model
) -> None:
    task, other = (make_task("digits", digits_bundle, TaskOptions()) for _ in range(2))
    losses = task.train(model, 100, "delta")
    next(losses), next(losses), next(losses)
    list(other.train(model, 3, "delta"))
    assert int(task.state()["position"]) == int(other.state()["position"]) == 96


def test_a_new_shared_part_changes_nothing_else(digits_bundle: Bundle, model: Model) -> None:
    task = make_task("digits", digits_bundle, TaskOptions())
    before = {name: value.copy() for name, value in model.call("get_state").items()}
    task.synchronised(model)
    for name, value in model.call("get_state").items():
        np.testing.assert_array_equal(value, before[name])


# --- refusals ------------------------------------------------------------------------------------


def test_a_state_of_other_data_is_refused(digits_bundle: Bundle, tmp_path: Path) -> None:
    task = make_task("digits", digits_bundle, TaskOptions(share=(0, 0.5)))
    sentence = "the state was saved with other data than the task has now."
    labels = np.arange(103, dtype=np.int32) % 10
    relabelled = write(tmp_path / "b.npz", y_train=labels[::-1].copy())
    npz = TaskOptions(data=write(tmp_path / "a.npz", y_train=labels))
    for name, options in (
        ("digits", TaskOptions(share=(0.5, 1))),
        ("digits", TaskOptions(share=(0, 0.6))),
        ("npz", npz),
    ):
        state = make_task(name, digits_bundle, options).state()
        assert refusal(partial(task.restore, state)) == sentence
    state = make_task("npz", digits_bundle, npz).state()
    other = make_task("npz", digits_bundle, TaskOptions(data=relabelled))
    assert refusal(lambda: other.restore(state)) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": None}, "a state of this task holds data, seed, epoch, position, and no more."),
        ({"more": np.array(1)},
         "a state of this task holds data, seed, epoch, position, and no more."),
        ({"epoch": np.array([1])}, "epoch in the state of a task is a single int64, 0 or more."),
        ({"epoch": np.array(1.0)}, "epoch in the state of a task is a single int64, 0 or more."),
        ({"seed": np.array(-1)}, "seed in the state of a task is a single int64, 0 or more."),
        ({"position": np.array(1438)},
         "position in the state of a task is 1438, of 1437 examples."),
    ],
    ids=["missing", "unknown", "shape", "type", "negative", "too far"],
)  # fmt: skip
def test_a_damaged_state_is_refused_and_changes_nothing(
    digits_bundle: Bundle, changes: Arrays, sentence: str
) -> None:
    task = make_task("digits", digits_bundle, TaskOptions(seed=3))
    before = task.state()
    damaged = {k: v for k, v in (before | changes).items() if v is not None}
    assert refusal(lambda: task.restore(damaged)) == sentence
    assert {k: v.tolist() for k, v in task.state().items()} == {
        k: v.tolist() for k, v in before.items()
    }


def test_the_end_of_a_pass_can_be_restored(digits_bundle: Bundle) -> None:
    task = make_task("digits", digits_bundle, TaskOptions())
    task.restore(task.state() | {"position": np.array(1437)})
    assert int(task.state()["position"]) == 1437


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"share": (0.5, 0.5)},
         "the share 0.5:0.5 must run upwards between 0 and 1, as 0:0.2 does."),
        ({"share": (0, 1.5)}, "the share 0:1.5 must run upwards between 0 and 1, as 0:0.2 does."),
        ({"share": (float("nan"), 1)},
         "the share nan:1 must run upwards between 0 and 1, as 0:0.2 does."),
        ({"seed": -1}, "the seed -1 is not between 0 and 2⁶³ - 1."),
        ({"sticky": 1.0}, "actions cannot be sticky with probability 1.0."),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    assert refusal(lambda: TaskOptions(**options)) == sentence


def test_a_task_that_does_not_fit_the_bundle_is_refused(
    digits_bundle: Bundle, tmp_path: Path
) -> None:
    folder = digits_bundle.folder
    regression = with_inputs(digits_bundle, x=("uint8", 32, 8, 8, 1), y=("float32", 32, 1))
    players = {"obs": ("uint8", 32, 84, 84, 4), "action": ("int32", 32)}
    player = with_inputs(digits_bundle, **players)
    for name, bundle, options, sentence in (
        ("chess", digits_bundle, TaskOptions(),
         "there is no task 'chess'; there are digits, npz, cifar10, atari, minatar, cartpole, "
         "play."),
        ("npz", digits_bundle, TaskOptions(),
         "the task npz needs data: a .npz file with x_train, y_train, x_test and y_test."),
        ("digits", digits_bundle, TaskOptions(data=tmp_path),
         f"the task digits brings its own data and takes no {tmp_path}."),
        ("digits", digits_bundle, TaskOptions(share=(0, 1e-9)),
         "the share 0:1e-09 of 1437 examples is empty."),
        ("cifar10", digits_bundle, TaskOptions(data=tmp_path),
         f"the task cifar10 has examples of uint8[32, 32, 3]; the bundle at {folder} takes "
         "uint8[8, 8, 1]."),
        ("digits", player, TaskOptions(),
         f"the task digits needs a bundle that learns from examples; the one at {folder} trains "
         "on obs, action."),
        ("npz", regression, TaskOptions(),
         f"the task npz needs a bundle that learns from examples; the one at {folder} trains on "
         "x, y; if it learns from numbers, export it again."),
    ):  # fmt: skip
        assert refusal(partial(make_task, name, bundle, options)) == sentence
    assert TASKS == ("digits", "npz", "cifar10", "atari", "minatar", "cartpole", "play")


@pytest.mark.parametrize("exchange", ["weights", ""])
def test_an_unknown_exchange_is_refused_at_once(
    digits_bundle: Bundle, model: Model, exchange: str
) -> None:
    task = make_task("digits", digits_bundle, TaskOptions())
    sentence = f"there is no exchange {exchange!r}; there are delta and gradient."
    assert refusal(lambda: task.train(model, 1, exchange)) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_train": None},
         "{} must be an .npz file with the arrays x_train, y_train, x_test, y_test, or x, y, or "
         "images, labels."),
        ({"x_train": np.zeros((103, 8, 8), np.uint8)},
         "{} holds x_train as uint8[103, 8, 8]; the branch takes uint8[103, 8, 8, 1]."),
        ({"x_test": np.zeros((7, 8, 8, 1))},
         "{} holds x_test as float64[7, 8, 8, 1]; the branch takes uint8[7, 8, 8, 1]."),
        ({"y_train": None}, "{} holds no y_train; only an autoencoder needs none."),
        ({"y_train": np.arange(103) % 10 * 1.0},
         "{} holds y_train as float64[103]; the branch takes int32[103]."),
        ({"y_train": np.zeros((103, 1), np.int32)},
         "{} holds y_train as int32[103, 1]; the branch takes int32[103]."),
        ({"y_test": np.int32(3)},
         "{} holds 7 examples as x_test and 0 targets as y_test, to test with."),
        ({"y_train": np.zeros(102, np.int32)},
         "{} holds 103 examples as x_train and 102 targets as y_train, to train with."),
        ({"x_test": np.zeros((0, 8, 8, 1), np.uint8), "y_test": np.zeros(0, np.int32)},
         "{} holds 0 examples as x_test and 0 targets as y_test, to test with."),
        ({"y_test": np.array([0, 1, 2, -1, 0, 1, 2], np.int32)},
         "row 3 of y_test in {} is -1; the branch's classes are 0 to 9."),
        ({"y_train": np.arange(103) % 10 + 1},
         "row 9 of y_train in {} is 10; the branch's classes are 0 to 9."),
        ({"y_train": np.full(103, 2**32, np.int64)},
         "row 0 of y_train in {} is 4294967296; the branch's classes are 0 to 9."),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused(
    digits_bundle: Bundle, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    labels = np.arange(103, dtype=np.int32) % 10
    data = write(tmp_path / "own.npz", **{"y_train": labels, **changes})
    options = TaskOptions(data=data)
    assert refusal(lambda: make_task("npz", digits_bundle, options)) == sentence.format(data)


def test_numbers_that_are_not_finite_are_refused(digits_bundle: Bundle, tmp_path: Path) -> None:
    floats = with_inputs(digits_bundle, x=("float32", 32, 8, 8, 1), y=("int32", 32))
    x = np.zeros((103, 8, 8, 1), np.float32)
    good = write(tmp_path / "good.npz", x_train=x, x_test=x[:7])
    assert make_task("npz", floats, TaskOptions(data=good)).samples == 103
    x[50, 3, 3, 0] = np.nan
    data = write(tmp_path / "own.npz", x_train=x, x_test=x[:7])
    sentence = f"row 50 of x_train in {data} holds a number that is not finite."
    assert refusal(lambda: make_task("npz", floats, TaskOptions(data=data))) == sentence


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int16])
def test_labels_of_another_whole_type_are_converted(
    digits_bundle: Bundle, tmp_path: Path, dtype: Any
) -> None:
    x, y = digit_images()
    data = tmp_path / "own.npz"
    np.savez(data, x=x, y=y.astype(dtype))
    converted = make_task("npz", digits_bundle, TaskOptions(data=data))
    own = make_task("digits", digits_bundle, TaskOptions())
    assert converted.state()["data"].tolist() == own.state()["data"].tolist()


def test_rows_of_an_undivided_file_are_counted_as_in_the_file(
    digits_bundle: Bundle, tmp_path: Path
) -> None:
    """Every fifth row is for the test; each row is the first bad one in its turn."""
    data = tmp_path / "own.npz"
    for row in (0, 1, 4, 5, 6, 99):
        labels = np.zeros(100, np.int64)
        labels[row] = 10 + row
        np.savez(data, images=np.zeros((100, 8, 8, 1), np.uint8), labels=labels)
        assert refusal(lambda: make_task("npz", digits_bundle, TaskOptions(data=data))) == (
            f"row {row} of labels in {data} is {10 + row}; the branch's classes are 0 to 9."
        )


def test_text_given_as_npz_says_what_to_do(digits_bundle: Bundle, tmp_path: Path) -> None:
    data = tmp_path / "own.csv"
    data.write_text("a,b,label\n0.5,1.5,2\n")
    assert refusal(lambda: make_task("npz", digits_bundle, TaskOptions(data=data))) == (
        f"{data} is text, not .npz; read it with numpy.loadtxt and write its columns with "
        "numpy.savez(file, x=…, y=…)."
    )
