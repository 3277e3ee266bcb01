"""A cascade of two networks answers softmax(L + R), whatever the form of either."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from keras import layers

from broker.aggregator.slice_file import read_slice
from broker.protocol.slice import Slice, union
from toolkit.branch import Branch, BranchDropout, DoubleQ, Supervised
from toolkit.branch.branch import sharing_everything
from toolkit.branch.cascade import cascade
from toolkit.errors import ModelError
from toolkit.export.onnx.slice import build_slice

CLASSES, INPUT = 3, 6
Array = npt.NDArray[Any]
Close = Callable[[keras.KerasTensor], keras.KerasTensor]


def softmax_layer(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Softmax(name="softmax")(layers.Dense(CLASSES, name="out")(x))


def softmax_activation(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Activation("softmax", name="closing")(layers.Dense(CLASSES, name="out")(x))


def softmax_in_dense(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Dense(CLASSES, activation="softmax", name="out")(x)


def logits(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Dense(CLASSES, name="out")(x)


def network(hidden: int, close: Close = softmax_layer, name: str = "net") -> Branch:
    """stem → hidden → out; two of different widths have the stem in common."""
    x = keras.Input((INPUT,))
    stem = layers.Dense(5, activation="tanh", name="stem")(x)
    y = close(layers.Dense(hidden, activation="relu", name="hidden")(stem))
    return wholly(keras.Model(x, y, name=name))


def sequential(hidden: int, name: str = "net") -> Branch:
    return wholly(
        keras.Sequential(
            [
                keras.Input((INPUT,)),
                layers.Dense(5, activation="tanh", name="stem"),
                layers.Dense(hidden, activation="relu", name="hidden"),
                layers.Dense(CLASSES, activation="softmax", name="out"),
            ],
            name=name,
        )
    )


def wholly(model: keras.Model) -> Branch:
    weights = np.random.default_rng(model.count_params())
    model.set_weights([weights.normal(0, 0.5, w.shape) for w in model.get_weights()])
    return Branch(model.name, model, tuple(layer.name for layer in model.layers if layer.weights))


def frames(count: int = 7) -> Array:
    return np.random.default_rng(0).normal(size=(count, INPUT)).astype(np.float32)


def answer(weights: dict[str, Array], x: Array) -> Array:
    """The logits of `network` in numpy."""
    stem = np.tanh(x @ weights["stem/kernel"] + weights["stem/bias"])
    hidden = np.maximum(stem @ weights["hidden/kernel"] + weights["hidden/bias"], 0)
    return np.asarray(hidden @ weights["out/kernel"] + weights["out/bias"])


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def summed(weak: Branch, strong: Branch) -> Array:
    """L + R, with the weak network's stem in both."""
    stem = {name: v for name, v in weak.weights().items() if name.startswith("stem/")}
    refined = answer({**strong.weights(), **stem}, frames())
    return np.asarray(answer(dict(weak.weights()), frames()) + refined)


FORMS = {
    "functional": (network(2), network(9)),
    "sequential": (sequential(2), sequential(9)),
    "mixed": (network(2), sequential(9)),
    "softmax layer": (network(2, softmax_layer), network(9, softmax_layer)),
    "activation": (network(2, softmax_activation), network(9, softmax_activation)),
    "in the last layer": (network(2, softmax_in_dense), network(9, softmax_in_dense)),
    "one of them open": (network(2, softmax_in_dense), network(9, logits)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("branch_dropout", [None, 0.5])
def test_a_cascade_answers_softmax_of_the_sum(form: str, branch_dropout: float | None) -> None:
    weak, strong = FORMS[form]
    joined = cascade(weak, strong, branch_dropout=branch_dropout)
    expected = softmax(summed(weak, strong))
    np.testing.assert_allclose(joined.model(frames()), expected, rtol=1e-5, atol=1e-6)


def test_networks_without_a_softmax_are_added_as_they_are() -> None:
    weak, strong = network(2, logits), network(9, logits)
    joined = cascade(weak, strong)
    np.testing.assert_allclose(joined.model(frames()), summed(weak, strong), rtol=1e-5, atol=1e-5)


def test_what_both_begin_with_is_computed_once_and_other_names_get_a_prefix() -> None:
    joined = cascade(network(2), network(9))
    assert [layer.name for layer in joined.model.layers[1:]] == [
        "stem", "hidden", "strong_hidden", "out", "strong_out", "cascade_sum", "softmax",
    ]  # fmt: skip
    assert set(joined.shared_names) == set(network(2).shared_names)
    assert joined.local_names == (
        "strong_hidden/kernel", "strong_hidden/bias", "strong_out/kernel", "strong_out/bias",
    )  # fmt: skip
    unalike = cascade(network(2), wholly(_otherwise_named()))
    assert {"stem", "trunk", "hidden", "wide"} <= {layer.name for layer in unalike.model.layers}


def _otherwise_named() -> keras.Model:
    x = keras.Input((INPUT,))
    y = layers.Dense(8, activation="relu", name="wide")(layers.Dense(4, name="trunk")(x))
    return keras.Model(x, softmax_layer(y), name="other")


def test_a_layer_that_begins_both_with_other_options_is_not_shared() -> None:
    weak = network(2)
    strong = wholly(
        keras.Sequential(
            [
                keras.Input((INPUT,)),
                layers.Dense(5, activation="relu", name="stem"),
                layers.Dense(CLASSES, name="out"),
            ]
        )
    )
    joined = cascade(weak, strong)
    np.testing.assert_array_equal(
        joined.weights()["strong_stem/kernel"], strong.weights()["stem/kernel"]
    )
    np.testing.assert_array_equal(joined.weights()["stem/kernel"], weak.weights()["stem/kernel"])


@pytest.mark.parametrize("form", FORMS)
def test_a_fleet_of_the_weak_branch_and_the_cascade_agrees_on_what_is_shared(form: str) -> None:
    """Names, shapes and fingerprints of the slice are the weak branch's."""
    weak, strong = FORMS[form]
    found: list[Slice] = []
    for branch in (weak, cascade(weak, strong)):
        shared, start = read_slice(build_slice(branch).SerializeToString())
        found.append(shared)
        for name, value in start.items():
            np.testing.assert_array_equal(value, weak.weights()[name], err_msg=name)
    assert {tensor.name for tensor in found[0].tensors} == {t.name for t in found[1].tensors}
    assert len(union(found).tensors) == len(found[0].tensors)


def test_with_a_loss_at_both_outputs_the_weak_output_is_the_early_one() -> None:
    weak, strong = network(2), network(9)
    joined = cascade(weak, replace(strong, name="mine"))
    assert (joined.name, joined.early_output) == ("mine-cascade", "out")
    early = keras.Model(joined.model.input, joined.model.get_layer("out").output)
    np.testing.assert_allclose(early(frames()), answer(dict(weak.weights()), frames()), atol=1e-5)
    assert not any(isinstance(layer, BranchDropout) for layer in joined.model.layers)


def test_branch_dropout_stands_before_the_strong_networks_last_layer() -> None:
    """An example's answer is L + b, or L + 2 · (R - b) + b with the bias b of that layer."""
    keras.utils.set_random_seed(1)  # weights without dead units, and masks of both kinds
    weak, strong = network(2, logits), network(9, logits)
    joined = cascade(weak, strong, branch_dropout=0.5)
    assert joined.early_output is None
    dropout = joined.model.get_layer("branch_dropout")
    assert dropout.rate == 0.5
    assert dropout.output is joined.model.get_layer("strong_out").input
    found = np.asarray(joined.model(frames(), training=True))
    light, both = answer(dict(weak.weights()), frames()), summed(weak, strong)
    bias = strong.weights()["out/bias"]
    dropped, kept = light + bias, light + 2 * (both - light - bias) + bias
    near = [np.isclose(found, wanted, atol=1e-4).all(-1) for wanted in (dropped, kept)]
    assert (near[0] ^ near[1]).all()
    assert near[0].any() and near[1].any()


def test_it_learns_as_the_strong_branch_does() -> None:
    learning = Supervised("huber")
    weak = replace(network(2, logits), learning=Supervised("mse"))
    joined = cascade(weak, replace(network(9, logits), learning=learning))
    assert joined.learning == learning


def softplus(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Dense(CLASSES, activation="softplus", name="out")(x)


def wider(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.Dense(4, name="out")(x)


@pytest.mark.parametrize(
    ("weak", "strong", "sentence"),
    [
        (network(2), replace(network(9), input_dtype="uint8"),
         "a cascade takes two networks on the same input, and input dtype is float32 in net and "
         "uint8 in net."),
        (network(2), replace(network(9), input_scale=0.5),
         "a cascade takes two networks on the same input, and input scale is 1.0 in net and 0.5 in "
         "net."),
        (network(2), network(9, wider, "big"),
         "a cascade adds the outputs of two networks, and net answers (None, 3), big (None, 4)."),
        (network(2), replace(network(9, name="big"), learning=DoubleQ()),
         "net learns by Supervised and big by DoubleQ; the networks of a cascade learn in the same "
         "way."),
        (replace(network(2), shared_layers=("stem",)), network(9),
         "in a cascade the whole weak network is shared, and net keeps hidden/bias, hidden/kernel, "
         "out/bias, out/kernel; let its function return the model alone, or give --share all."),
        (network(2, softplus, "small"), network(9),
         "small closes with softplus, and a cascade adds the outputs of two networks; they must "
         "close with a softmax or without an activation."),
    ],
)  # fmt: skip
def test_what_cannot_be_a_cascade_is_one_sentence(
    weak: Branch, strong: Branch, sentence: str
) -> None:
    with pytest.raises(ModelError) as caught:
        cascade(weak, strong)
    assert str(caught.value) == sentence


def test_another_input_is_refused() -> None:
    x = keras.Input((4,))
    other = wholly(keras.Model(x, softmax_layer(x), name="other"))
    with pytest.raises(ModelError) as caught:
        cascade(network(2), other)
    assert str(caught.value) == (
        "a cascade takes two networks on the same input, and input shape is (6,) in net and (4,) "
        "in other."
    )


@pytest.mark.parametrize(
    ("early", "sentence"),
    [
        ("nothing", "the early output 'nothing' is no layer of the model."),
        ("stem", "the early output 'stem' has the shape (None, 5), and the model answers "
         "(None, 3); both must be equal."),
    ],
)  # fmt: skip
def test_an_early_output_that_is_none_is_refused(early: str, sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        replace(sharing_everything(network(2)), early_output=early)
    assert str(caught.value) == sentence
