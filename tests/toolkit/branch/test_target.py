"""The target of a branch follows from its loss and output, or is stated."""

import keras
import pytest

from firmware_sim.bundle.target import Kind, Target
from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ, Learning, LossName, Supervised
from toolkit.branch.target import target_of
from toolkit.errors import ModelError

PICTURE = (None, 8, 8, 1)


@pytest.mark.parametrize(
    ("learning", "answers", "found"),
    [
        (Supervised(), (None, 10), Target("class", (), 10)),
        (Supervised(), (None, 5, 3), Target("class_per_position", (5,), 3)),
        (Supervised(), (None, 8, 8, 3), Target("class_per_position", (8, 8), 3)),
        (Supervised("mse"), (None, 1), Target("numbers", (1,))),
        (Supervised("huber"), (None, 4, 2), Target("numbers", (4, 2))),
        (Supervised("mse"), PICTURE, Target("numbers", (8, 8, 1))),
        (Supervised("mse", target="input"), PICTURE, Target("input", (8, 8, 1), scale=0.5)),
        (DoubleQ(), (None, 4), None),
    ],
)
def test_a_target_is_found(
    learning: Learning, answers: tuple[int | None, ...], found: Target | None
) -> None:
    assert target_of("net", learning, takes=PICTURE, answers=answers, scale=0.5) == found


@pytest.mark.parametrize(
    ("learning", "answers", "sentence"),
    [
        (Supervised(target="class"), (None, 5, 3),
         "the model of net answers (None, 5, 3); for the target 'class' it must be "
         "(None, classes)."),
        (Supervised(target="class_per_position"), (None, 3),
         "the model of net answers (None, 3); for the target 'class_per_position' it must be "
         "(None, positions, classes)."),
        (Supervised("mse"), (None,),
         "the model of net answers (None,); for the target 'numbers' it must be (None, numbers)."),
        (Supervised("mse", target="input"), (None, 8, 8, 2),
         "the model of net answers (None, 8, 8, 2); for the target 'input' it must be "
         "(None, 8, 8, 1), which is what it takes."),
        (DoubleQ(), (None, 4, 2),
         "the model of net answers (None, 4, 2); it must be (None, actions)."),
    ],
)  # fmt: skip
def test_an_output_that_does_not_fit_is_one_sentence(
    learning: Learning, answers: tuple[int | None, ...], sentence: str
) -> None:
    with pytest.raises(ModelError) as caught:
        target_of("net", learning, takes=PICTURE, answers=answers)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("loss", "target", "fitting"),
    [
        ("cross_entropy", "input", "mse, mae or huber"),
        ("cross_entropy", "numbers", "mse, mae or huber"),
        ("mse", "class", "cross_entropy"),
        ("huber", "class_per_position", "cross_entropy"),
    ],
)
def test_a_loss_must_fit_the_target(loss: LossName, target: Kind, fitting: str) -> None:
    with pytest.raises(ModelError) as caught:
        Supervised(loss, target=target)
    assert str(caught.value) == (
        f"the loss {loss} does not fit the target {target!r}; take {fitting}."
    )


def test_a_branch_knows_its_target() -> None:
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, name="stem")])
    learning = Supervised("mse", target="input")
    branch = Branch("auto", net, ("stem",), learning, "uint8", input_scale=1 / 16)
    assert branch.target == Target("input", (6,), scale=1 / 16)
    assert Branch("plain", net, ("stem",)).target == Target("class", (), 6)
