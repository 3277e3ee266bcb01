"""Training and evaluating a bundle batch by batch equals what one computes plainly."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim import local
from firmware_sim.bundle import Bundle
from firmware_sim.runtime import Model, WrongInput
from firmware_sim.supervised import Batches, Score, evaluate, train
from firmware_sim.tasks.digits import digit_images

Data = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@pytest.fixture(scope="module")
def digits() -> Data:
    return digit_images()


@pytest.fixture
def model(digits_bundle: Bundle) -> Model:
    return Model(digits_bundle.model, runtime="ai-edge-litert")


class Recorder:
    """Stands for a model, and keeps what it is asked to train on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int], list[int]]] = []

    def call(self, signature: str, /, *, x: Any, y: Any) -> dict[str, Any]:
        self.seen.append((signature, x[:, 0].tolist(), y.tolist()))
        return {"loss": np.float32(len(self.seen))}


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(10, 4), (12, 4), (5, 5), (3, 8), (1, 3)])
def test_each_pass_draws_each_example_once(count: int, size: int):
    batches = Batches(count, size, seed=0)
    drawn: list[int] = []
    for _ in range(3 * count):  # `size` passes, thrice
        assert divmod(len(drawn), count) in (
            (batches.epoch, batches.position),
            (batches.epoch + 1, batches.position - count),  # a pass may be just over
        )
        drawn += batches.next().tolist()
    assert len(drawn) == 3 * count * size
    passes = [drawn[start : start + count] for start in range(0, len(drawn), count)]
    assert [sorted(one) for one in passes] == [list(range(count))] * (3 * size)
    assert count == 1 or len({tuple(one) for one in passes}) > 1, "every pass has its own order"


@pytest.mark.parametrize("taken", range(9))
def test_batches_go_on_from_seed_epoch_and_position(taken: int):
    batches = Batches(10, 4, seed=7)
    for _ in range(taken):
        batches.next()
    again = Batches(10, 4, seed=7, epoch=batches.epoch, position=batches.position)
    for _ in range(6):
        assert again.next().tolist() == batches.next().tolist()


def test_the_seed_decides_the_order():
    orders = [[Batches(20, 4, seed=seed).next().tolist() for _ in range(5)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_no_examples_make_no_batches():
    with pytest.raises(WrongInput, match=r"^there are no examples to train on\.$"):
        Batches(0, 4, seed=0)


def test_training_passes_each_batch_with_its_labels():
    recorder = Recorder()
    x, y = np.arange(10, dtype=np.uint8)[:, None], np.arange(10, dtype=np.int32) + 100
    steps = train(recorder, x, y, Batches(10, 4, seed=3), steps=7, signature="accumulate")  # type: ignore[arg-type]
    taken = list(steps)
    assert [step.loss for step in taken] == [1, 2, 3, 4, 5, 6, 7]
    assert all(step.seconds >= 0 for step in taken)
    expected = Batches(10, 4, seed=3)
    for signature, examples, labels in recorder.seen:
        assert (signature, examples) == ("accumulate", expected.next().tolist())
        assert labels == [i + 100 for i in examples]


def test_training_learns_digits(model: Model, digits: Data):
    x, y = digits
    before = evaluate(model, x[1500:], y[1500:])
    batches = Batches(1500, 32, seed=0)
    losses = [step.loss for step in train(model, x[:1500], y[:1500], batches, steps=200)]
    after = evaluate(model, x[1500:], y[1500:])
    assert np.mean(losses[:10]) == pytest.approx(np.log(10), rel=0.2)  # it knows nothing yet
    assert np.mean(losses[-10:]) < 0.4 * np.mean(losses[:10])
    assert after.loss < 0.5 * before.loss
    assert before.accuracy < 0.4
    assert after.accuracy > 0.8
    assert model.call("get_state")["optimizer/step"] == 200


# --- evaluating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 31, 32, 33, 70])
def test_evaluating_equals_the_plain_computation(model: Model, digits: Data, count: int):
    x, y = digits[0][:count], digits[1][:count]
    answers = np.array([model.call("infer", x=one[None])["output"][0] for one in x])
    score = evaluate(model, x, y)
    assert score.loss == pytest.approx(np.mean(-np.log(answers[np.arange(count), y])), rel=1e-5)
    assert score.accuracy == np.mean(np.argmax(answers, 1) == y)


def test_evaluating_changes_nothing(model: Model, digits: Data):
    before = model.call("get_state")
    first = evaluate(model, digits[0][:50], digits[1][:50])
    assert evaluate(model, digits[0][:50], digits[1][:50]) == first
    assert isinstance(first, Score)
    for name, value in model.call("get_state").items():
        np.testing.assert_array_equal(value, before[name])


def test_examples_that_do_not_match_their_labels_are_refused(model: Model, digits: Data):
    x, y = digits
    for images, labels, sentence in (
        (x[:0], y[:0], "examples [0, 8, 8, 1] and labels [0] do not match."),
        (x[:5], y[:4], "examples [5, 8, 8, 1] and labels [4] do not match."),
        (x[:1], y[0], "examples [1, 8, 8, 1] and labels [] do not match."),
    ):
        for call in (
            lambda x=images, y=labels: evaluate(model, x, y),
            lambda x=images, y=labels: next(train(model, x, y, Batches(5, 32, seed=0), steps=1)),
        ):
            with pytest.raises(WrongInput) as caught:
                call()
            assert str(caught.value) == sentence


# --- python -m firmware_sim.local ----------------------------------------------------------------


def write(file: Path, data: Data, **changes: Any) -> Path:
    x, y = data
    arrays = {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:350], "y_test": y[300:350]}
    np.savez(file, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return file


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> str:
    """The sentence that it ends with, or the report that it prints."""
    monkeypatch.setattr(sys, "argv", ["local", *map(str, arguments)])
    try:
        local.main()
    except SystemExit as stop:
        assert isinstance(stop.code, str)  # which Python prints to stderr, and ends with 1
        return stop.code
    return capsys.readouterr().out


def test_a_bundle_learns_on_its_own_data(
    digits_bundle: Bundle,
    digits: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    data = write(tmp_path / "digits.npz", digits)
    arguments = ("--bundle", digits_bundle.folder, "--data", data, "--steps", 60)
    report = json.loads(run(monkeypatch, capsys, *arguments))
    assert (report["runtime"], report["steps"]) == ("ai-edge-litert", 60)
    assert report["after"]["loss"] < 0.9 * report["before"]["loss"]
    assert 0 < report["step_seconds"] < 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y_test": None}, "error: {data} must hold the arrays x_train, y_train, x_test, y_test."),
        ({"x_test": np.zeros((0, 8, 8, 1), np.uint8)},
         "error: examples [0, 8, 8, 1] and labels [50] do not match."),
        ({"x_train": np.zeros((300, 8, 8, 1))},
         "error: train takes x as uint8[32, 8, 8, 1], not float64[32, 8, 8, 1]."),
        ({"x_train": np.array([None])}, "error: {data} cannot be read as .npz (Object arrays "),
    ],
    ids=["an array is missing", "no examples", "other type", "objects"],
)  # fmt: skip
def test_bad_data_are_refused(
    digits_bundle: Bundle,
    digits: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    sentence: str,
):
    data = write(tmp_path / "digits.npz", digits, **changes)
    said = run(monkeypatch, capsys, "--bundle", digits_bundle.folder, "--data", data, "--steps", 1)
    assert said.startswith(sentence.format(data=data))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, " (No such file or directory)."),
        (b"", " as .npz (No data left in file)."),
        (b"PK\x03\x04", " as .npz (File is not a zip file)."),
        (b"hello", " as .npz (Cannot load file containing pickled data when allow_pickle=False)."),
    ],
    ids=["missing", "empty", "no zip", "text"],
)
def test_a_data_file_that_cannot_be_read_is_refused(
    digits_bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    why: str,
):
    data = tmp_path / "digits.npz"
    if content is not None:
        data.write_bytes(content)
    said = run(monkeypatch, capsys, "--bundle", digits_bundle.folder, "--data", data)
    assert said == f"error: {data} cannot be read{why}"


def test_a_lone_array_is_refused(
    digits_bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    np.save(tmp_path / "x.npy", np.zeros(3))
    said = run(monkeypatch, capsys, "--bundle", digits_bundle.folder, "--data", tmp_path / "x.npy")
    assert said.startswith(f"error: {tmp_path / 'x.npy'} cannot be read as .npz (")


def test_a_bad_bundle_is_one_sentence_and_a_failure(tmp_path: Path):
    command = [sys.executable, "-m", "firmware_sim.local", "--data", "x.npz", "--bundle", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"error: {tmp_path} is not a bundle: it has no manifest.json.\n"
