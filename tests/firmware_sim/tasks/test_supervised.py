"""Training and evaluating a bundle batch by batch equals what one computes plainly."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import WrongInput
from firmware_sim.tasks.digits import digit_images
from firmware_sim.tasks.supervised import Batches, evaluate, train
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.runtime import Model

Data = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@pytest.fixture(scope="module")
def digits() -> Data:
    return digit_images()


@pytest.fixture
def model(digits_bundle: Bundle) -> Model:
    return Model(digits_bundle.model, runtime="ai-edge-litert")


class Recorder:
    """Stands for a model, and keeps what it is asked to train on."""

    signatures = ("train", "accumulate")

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int], list[int]]] = []

    def call(self, signature: str, /, *, x: Any, y: Any) -> dict[str, Any]:
        self.seen.append((signature, x[:, 0].tolist(), y.tolist()))
        return {"loss": np.float32(len(self.seen))}

    def inputs(self, signature: str) -> dict[str, TensorSpec]:
        x, y = TensorSpec((4, 1), np.dtype(np.uint8)), TensorSpec((4,), np.dtype(np.int32))
        return {"x": x, "y": y}


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(10, 4), (12, 4), (5, 5), (3, 8), (1, 3)])
def test_each_pass_draws_each_example_once(count: int, size: int) -> None:
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
def test_batches_go_on_from_seed_epoch_and_position(taken: int) -> None:
    batches = Batches(10, 4, seed=7)
    for _ in range(taken):
        batches.next()
    again = Batches(10, 4, seed=7, epoch=batches.epoch, position=batches.position)
    for _ in range(6):
        assert again.next().tolist() == batches.next().tolist()


def test_the_seed_decides_the_order() -> None:
    orders = [[Batches(20, 4, seed=seed).next().tolist() for _ in range(5)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_no_examples_make_no_batches() -> None:
    with pytest.raises(WrongInput, match=r"^there are no examples to train on\.$"):
        Batches(0, 4, seed=0)


def test_training_passes_each_batch_with_its_labels() -> None:
    recorder = Recorder()
    x, y = np.arange(10, dtype=np.uint8)[:, None], np.arange(10, dtype=np.int32) + 100
    steps = train(recorder, x, y, Batches(10, 4, seed=3), steps=7, signature="accumulate")  # type: ignore[arg-type]
    assert list(steps) == [1, 2, 3, 4, 5, 6, 7]
    expected = Batches(10, 4, seed=3)
    for signature, examples, labels in recorder.seen:
        assert (signature, examples) == ("accumulate", expected.next().tolist())
        assert labels == [i + 100 for i in examples]


def test_training_learns_digits(model: Model, digits: Data) -> None:
    x, y = digits
    before = evaluate(model, x[1500:], y[1500:])
    batches = Batches(1500, 32, seed=0)
    losses = list(train(model, x[:1500], y[:1500], batches, steps=200))
    after = evaluate(model, x[1500:], y[1500:])
    assert np.mean(losses[:10]) == pytest.approx(np.log(10), rel=0.2)  # it knows nothing yet
    assert np.mean(losses[-10:]) < 0.4 * np.mean(losses[:10])
    assert after["loss"] < 0.5 * before["loss"]
    assert before["accuracy"] < 0.4
    assert after["accuracy"] > 0.8
    assert model.call("get_state")["optimizer/step"] == 200


# --- evaluating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 31, 32, 33, 70])
def test_evaluating_equals_the_plain_computation(model: Model, digits: Data, count: int) -> None:
    x, y = digits[0][:count], digits[1][:count]
    answers = np.array([model.call("infer", x=one[None])["output"][0] for one in x])
    score = evaluate(model, x, y)
    assert score["loss"] == pytest.approx(np.mean(-np.log(answers[np.arange(count), y])), rel=1e-5)
    assert score["accuracy"] == np.mean(np.argmax(answers, 1) == y)


def test_evaluating_changes_nothing(model: Model, digits: Data) -> None:
    before = model.call("get_state")
    first = evaluate(model, digits[0][:50], digits[1][:50])
    assert evaluate(model, digits[0][:50], digits[1][:50]) == first
    for name, value in model.call("get_state").items():
        np.testing.assert_array_equal(value, before[name])


def test_examples_that_do_not_match_their_labels_are_refused(model: Model, digits: Data) -> None:
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
