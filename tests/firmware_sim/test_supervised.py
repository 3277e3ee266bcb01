"""Training and evaluating a bundle batch by batch equals what one computes plainly."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim import local
from firmware_sim.bundle import Bundle
from firmware_sim.runtime import Model, TensorSpec, WrongInput
from firmware_sim.supervised import Score, evaluate, train
from toolkit.calibration import digit_images

Data = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]


@pytest.fixture(scope="module")
def digits() -> Data:
    return digit_images()


@pytest.fixture
def model(digits_bundle: Bundle) -> Model:
    return Model(digits_bundle.model, runtime="ai-edge-litert")


class Recorder:
    """Stands for a model, and keeps what it is asked to train on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seen: list[tuple[list[int], list[int]]] = []

    def inputs(self, signature: str) -> Mapping[str, TensorSpec]:
        assert signature == "train"
        return {"x": TensorSpec((self.size, 1), np.dtype(np.uint8))}

    def call(self, signature: str, /, *, x: Any, y: Any) -> dict[str, Any]:
        self.seen.append((x[:, 0].tolist(), y.tolist()))
        return {"loss": np.float32(len(self.seen))}


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(10, 4), (12, 4), (5, 5), (3, 8)])
def test_each_pass_sees_each_example_once(count: int, size: int):
    recorder = Recorder(size)
    x, y = np.arange(count, dtype=np.uint8)[:, None], np.arange(count, dtype=np.int32) + 100
    steps = 3 * count  # `size` passes, thrice
    taken = list(train(recorder, x, y, steps=steps, seed=0))  # type: ignore[arg-type]
    assert [step.loss for step in taken] == list(range(1, steps + 1))
    assert all(step.seconds >= 0 for step in taken)
    drawn = [i for batch, _ in recorder.seen for i in batch]
    assert len(drawn) == steps * size
    passes = [drawn[start : start + count] for start in range(0, len(drawn), count)]
    assert [sorted(one) for one in passes] == [list(range(count))] * (3 * size)
    assert len({tuple(one) for one in passes}) > 1, "every pass has an order of its own"
    assert all([i + 100 for i in batch] == labels for batch, labels in recorder.seen)


def test_the_seed_decides_the_order():
    orders = []
    for seed in (0, 0, 1):
        recorder = Recorder(4)
        x, y = np.arange(20, dtype=np.uint8)[:, None], np.zeros(20, np.int32)
        list(train(recorder, x, y, steps=5, seed=seed))  # type: ignore[arg-type]
        orders.append(recorder.seen)
    assert orders[0] == orders[1] != orders[2]


def test_training_learns_digits(model: Model, digits: Data):
    x, y = digits
    before = evaluate(model, x[1500:], y[1500:])
    losses = [step.loss for step in train(model, x[:1500], y[:1500], steps=200, seed=0)]
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
            lambda x=images, y=labels: next(train(model, x, y, steps=1, seed=0)),
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
