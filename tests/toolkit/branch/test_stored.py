"""A stored branch is the same branch, and reading one never runs code."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from broker.durable import read_sealed, write_sealed
from toolkit import zoo
from toolkit.branch.branch import Branch, all_layers
from toolkit.branch.stored import check_description, read_branch, write_branch
from toolkit.errors import ModelError


class Doubled(layers.Layer):
    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x * 2


def nested() -> Branch:
    """Keras names the variables inside `inner` differently in a copy."""
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.BatchNormalization()])
    x = keras.Input((4,))
    y = layers.Dense(2, name="head")(keras.ops.relu(layers.Dropout(0.5)(inner(x))) * 2)
    model = keras.Model(x, y)
    model.compile("sgd", "mse")
    return Branch("nested", model, ("head",), input_dtype="uint8", input_scale=0.5)


@pytest.mark.parametrize("branch", [nested(), zoo.build("digits", "complex", "cascading")])
def test_a_branch_is_the_same_again(branch: Branch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for variable in branch.model.variables:
        if variable.dtype == "float32":
            variable.assign(rng.uniform(0.1, 1, variable.shape))
    write_branch(branch, tmp_path / "branch")
    again = read_branch(tmp_path / "branch")
    x = rng.normal(size=(3, *branch.input_shape)).astype(np.float32)
    np.testing.assert_array_equal(again.branch.model(x), branch.model(x))
    for name, value in branch.weights().items():
        np.testing.assert_array_equal(np.asarray(again.variables[name]), value)
    for fact in ("name", "shared_layers", "input_dtype", "input_scale", "early_output"):
        assert getattr(again.branch, fact) == getattr(branch, fact)
    assert again.branch.model.compiled == branch.model.compiled


@pytest.mark.parametrize(
    "layer", [Doubled(), layers.Lambda(lambda x: x), layers.Activation(lambda x: x)]
)
def test_layers_with_code_are_not_stored(layer: keras.Layer, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), layer, layers.Dense(2)])
    with pytest.raises(ModelError):
        write_branch(Branch("own", model, all_layers(model)), tmp_path / "branch")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "hidden",
    [
        {"module": "os", "class_name": "system", "config": {}},
        {"module": "keras.layers", "class_name": "Lambda", "config": {}},
        {"module": "kerasx.layers", "class_name": "Dense", "config": {}},
        {"class_name": "__lambda__", "config": {"value": "4wEAAAA="}},
        {"module": None, "class_name": "Dense", "registered_name": "other>Dense"},
    ],
)
def test_a_description_with_code_is_refused_before_keras_sees_it(
    hidden: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_branch(zoo.build("cartpole", "lightweight"), tmp_path / "branch")
    stored = read_sealed(tmp_path / "branch", "branch")
    table = json.loads(stored.tensors["model"].tobytes())
    table["config"]["layers"][1]["config"]["activation"] = hidden
    changed = np.frombuffer(json.dumps(table).encode(), np.uint8)
    write_sealed(tmp_path / "branch", "branch", stored.fields, {**stored.tensors, "model": changed})
    monkeypatch.setattr(keras.models, "model_from_json", lambda *_: pytest.fail("it was made"))
    with pytest.raises(ModelError, match="not a layer of Keras or runs code"):
        read_branch(tmp_path / "branch")


def test_damage_and_other_versions_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "branch"
    write_branch(zoo.build("cartpole", "lightweight"), path)
    stored = read_sealed(path, "branch")

    def refusal() -> str:
        with pytest.raises(ModelError) as caught:
            read_branch(path)
        return str(caught.value)

    write_sealed(path, "branch", {**stored.fields, "format": 2}, stored.tensors)
    assert refusal() == f"{path} was written by another version."
    write_sealed(path, "branch", {"format": 1}, stored.tensors)
    assert refusal() == f"{path} was written by another version."
    fewer = {**stored.fields, "variables": list(stored.fields["variables"])[1:]}
    write_sealed(path, "branch", fewer, stored.tensors)
    assert refusal().endswith(" has other variables.")
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal().startswith(f"{path} cannot be read: ")
    path.unlink()
    assert refusal() == f"{path} cannot be read (No such file or directory)."
    with pytest.raises(ModelError, match="is not JSON"):
        check_description(b"{", "it")
