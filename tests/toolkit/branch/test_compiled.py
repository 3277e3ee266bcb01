"""A compiled model brings its loss, its optimiser and its metrics, or is refused in a sentence."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, optimizers

from toolkit.branch.branch import Branch
from toolkit.branch.compiled import learning_of
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import SGD, Adam, AdamW, RMSProp
from toolkit.branch.schedules import CosineDecay, ExponentialDecay
from toolkit.branch.user_model import load_branch, sharing
from toolkit.errors import ModelError
from toolkit.training.module import TrainingModule


def net(closing: str | None = None, **options: Any) -> keras.Model:
    stack = [layers.Dense(6, activation="tanh", name="stem_a"), layers.Dense(5, name="stem_b")]
    head = layers.Dense(3, activation=closing, name="head", **options)
    return keras.Sequential([keras.Input((4,)), *stack, head])


def compiled(closing: str | None, loss: Any, optimizer: Any = "adam", **more: Any) -> keras.Model:
    model = net(closing)
    model.compile(optimizer, loss, **more)
    return model


SPARSE, BINARY = losses.SparseCategoricalCrossentropy, losses.BinaryCrossentropy
TAKEN: dict[str, tuple[keras.Model, Supervised]] = {
    "by names": (
        compiled("softmax", "sparse_categorical_crossentropy", metrics=["accuracy"]),
        Supervised("cross_entropy", Adam(0.001)),
    ),
    "logits, Nesterov": (
        compiled(None, SPARSE(from_logits=True), optimizers.SGD(0.1, 0.9, nesterov=True)),
        Supervised("cross_entropy", SGD(0.1, 0.9, True)),
    ),
    "smoothed, AdamW, schedule": (
        compiled(
            "softmax",
            losses.CategoricalCrossentropy(label_smoothing=0.1),
            optimizers.AdamW(optimizers.schedules.CosineDecay(0.1, 20), clipnorm=1.0),
            metrics=[keras.metrics.CategoricalAccuracy()],
        ),
        Supervised(
            "cross_entropy", AdamW(CosineDecay(0.1, 20, 0.0), clipnorm=1.0), label_smoothing=0.1
        ),
    ),
    "binary, RMSprop": (
        compiled(
            "sigmoid",
            "binary_crossentropy",
            optimizers.RMSprop(optimizers.schedules.ExponentialDecay(0.01, 5, 0.5), clipvalue=0.5),
        ),
        Supervised(
            "binary_cross_entropy", RMSProp(ExponentialDecay(0.01, 5.0, 0.5), clipvalue=0.5)
        ),
    ),
    "mae": (
        compiled(None, "mae", optimizers.Adam(0.01, global_clipnorm=2.0), metrics=["mae"]),
        Supervised("mae", Adam(0.01, global_clipnorm=2.0)),
    ),
    "huber": (
        compiled(None, losses.Huber(delta=0.5), optimizers.SGD(0.1, weight_decay=0.01)),
        Supervised("huber", SGD(0.1, weight_decay=0.01), huber_delta=0.5),
    ),
    "not compiled": (net(), Supervised()),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_a_model_was_compiled_with_is_taken(case: str) -> None:
    model, wanted = TAKEN[case]
    assert learning_of("it", model) == wanted


@pytest.mark.parametrize("case", [case for case in TAKEN if case != "not compiled"])
def test_eight_steps_are_those_of_keras(case: str) -> None:
    """Keras' own train_on_batch against the module that is exported."""
    given, _ = TAKEN[case]
    model = keras.models.clone_model(given)
    model.set_weights(given.get_weights())
    kind = type(given.optimizer)
    model.compile(kind.from_config(given.optimizer.get_config()), given.loss)
    branch = Branch("it", given, ("stem_a", "stem_b"), learning_of("it", given))
    module = TrainingModule(branch, batch=8, runtime="ai-edge-litert")
    rng = np.random.default_rng(0)
    by_class = branch.learning.loss == "cross_entropy"  # type: ignore[union-attr]
    one_hot = getattr(given.loss, "name", "") == "categorical_crossentropy"
    for _ in range(8):
        x = rng.normal(size=(8, 4)).astype(np.float32)
        y: Any = rng.integers(0, 3, 8).astype(np.int32)
        theirs = np.eye(3, dtype=np.float32)[y] if one_hot else y
        if not by_class:
            y = theirs = rng.integers(0, 2, (8, 3)).astype(np.float32)
        wanted = model.train_on_batch(x, theirs, return_dict=True)["loss"]
        found = module.train(x=tf.constant(x), y=tf.constant(y))["loss"]
        model.reset_metrics()
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for name, variable in zip(branch.weights(), model.variables, strict=True):
        mine = module.tensors([name])[name]
        np.testing.assert_allclose(mine, np.asarray(variable), rtol=1e-3, atol=1e-5)


def own(wanted: Any, found: Any) -> Any:
    return keras.ops.mean(wanted - found)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (compiled(None, own), "it is compiled with the loss own; a device knows "),
        (compiled(None, losses.Poisson()), "it is compiled with the loss poisson; a device knows "),
        (
            compiled(None, "sparse_categorical_crossentropy"),
            "it is compiled with from_logits=False, and the model closes without a softmax; "
            "change one of the two.",
        ),
        (
            compiled("sigmoid", BINARY(from_logits=True)),
            "it is compiled with from_logits=True, and the model closes with a sigmoid; ",
        ),
        (compiled(None, losses.MeanSquaredError(reduction="sum")), "it adds its loss up by 'sum'"),
        (
            compiled(
                None, losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
            ),
            "it has a loss with ignore_class or axis, which a device lacks.",
        ),
        (compiled(None, "mse", "ftrl"), "it is compiled with the optimiser Ftrl; a device knows "),
        (
            compiled(None, "mse", optimizers.RMSprop(momentum=0.5)),
            "it is compiled with the optimiser RMSprop with momentum; ",
        ),
        (
            compiled(None, "mse", optimizers.Adam(amsgrad=True)),
            "it is compiled with amsgrad=True of Adam, which a device does not have.",
        ),
        (
            compiled(
                None, "mse", optimizers.SGD(optimizers.schedules.CosineDecayRestarts(0.1, 3))
            ),
            "it is compiled with the schedule CosineDecayRestarts; a device knows ",
        ),
        (
            compiled(None, "mse", metrics=["mae", keras.metrics.AUC(name="auc")]),
            "it is compiled with the metric auc, which a device does not measure; ",
        ),
        (compiled(None, "mse", loss_weights=[0.5]), "it is compiled with loss_weights, which "),
        (
            net(kernel_regularizer="l2"),
            "layer 'head' has a kernel_regularizer, which a device does not compute; ",
        ),
    ],
)  # fmt: skip
def test_what_a_device_cannot_do_is_one_sentence(model: keras.Model, sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        learning_of("it", model)
    assert str(caught.value).startswith(sentence)


def test_a_saved_model_needs_no_python_file(tmp_path: Path) -> None:
    model, wanted = TAKEN["smoothed, AdamW, schedule"]
    file = tmp_path / "mine.keras"
    model.save(file)
    branch = sharing(load_branch(str(file)), "stem*")
    assert (branch.name, branch.shared_layers) == ("mine", ("stem_a", "stem_b"))
    assert branch.learning == wanted
    for name, value in branch.weights().items():
        np.testing.assert_array_equal(value, Branch("it", model, ("head",)).weights()[name])
    assert sharing(branch, "head, stem_?").shared_layers == ("head", "stem_a", "stem_b")
    with pytest.raises(ModelError, match=r"no layer with weights is called like 'x\*'; there are "):
        sharing(branch, "x*")
    with pytest.raises(ModelError, match="there is no file"):
        load_branch(str(tmp_path / "none.keras"))
    (tmp_path / "bad.keras").write_bytes(b"none")
    with pytest.raises(ModelError, match="Keras cannot load"):
        load_branch(str(tmp_path / "bad.keras"))
