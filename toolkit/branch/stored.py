"""A branch as a file of its bundle, from which `toolkit checkout` makes it again.

The file holds Keras' description of the model, as JSON, and all its weights. A device never loads
it and a pack does not carry it. Nothing in it is executed: only layers of Keras and of this
project are made, and none that holds code. Weights are matched by their place among the model's
variables, since Keras may name those of nested models differently in a copy.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from broker.durable import read_sealed, write_sealed
from broker.errors import WireError
from broker.protocol.wire import Array, below
from toolkit.autodiff.naming import named_variables
from toolkit.branch.branch import Branch
from toolkit.branch.layers import BranchDropout
from toolkit.errors import ModelError

FORMAT = 1
KIND = "branch"
_MODEL, _WEIGHTS = "model", "weights/"
_OURS = {f"stemshare>{layer.__name__}": layer for layer in (BranchDropout,)}
# What runs code that is stored in a description, or loads it from somewhere else.
_CODE = frozenset(
    {"__lambda__", "Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}
)
_PLAIN = frozenset(
    {"__keras_tensor__", "__tensor__", "__numpy__", "__ellipsis__", "__tuple__", "__slice__"}
    | {"__bytes__", "__typespec__"}
)


@dataclass(frozen=True, eq=False)
class StoredBranch:
    """A branch that was made again, with its variables by the names that the bundle has."""

    branch: Branch
    variables: Mapping[str, keras.Variable]

    def put(self, values: Mapping[str, Array]) -> None:
        """Sets the named variables."""
        for name, value in values.items():
            self.variables[name].assign(value)


def write_branch(branch: Branch, path: Path) -> None:
    """Writes the file; raises `ModelError` if the branch could not be made again from it."""
    try:
        with warnings.catch_warnings():  # of functions without a name, which are refused below
            warnings.simplefilter("ignore")
            described = branch.model.to_json()
    except Exception as error:  # a user's class may raise anything
        raise ModelError(f"Keras cannot describe the model of {branch.name}: {error}") from error
    variables = named_variables(branch.model)
    _make(described, variables, branch.name)
    facts = {
        "format": FORMAT,
        "name": branch.name,
        "shared_layers": list(branch.shared_layers),
        "input_dtype": branch.input_dtype,
        "input_scale": branch.input_scale,
        "early_output": branch.early_output,
        "received_layers": list(branch.received_layers),
        "variables": list(variables),
    }
    weights = {_WEIGHTS + name: value for name, value in branch.weights().items()}
    model = np.frombuffer(described.encode(), np.uint8)
    write_sealed(path, KIND, facts, {_MODEL: model, **weights})


def read_branch(path: Path) -> StoredBranch:
    """Returns the branch with its stored weights; how it learns is not stored."""
    try:
        stored = read_sealed(path, KIND)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}).") from None
    except WireError as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    facts = stored.fields
    try:
        if facts["format"] != FORMAT:
            raise ModelError(f"{path} was written by another version.")
        weights = below(_WEIGHTS, stored.tensors)
        shapes = {name: weights.get(name) for name in facts["variables"]}
        model, variables = _make(stored.tensors[_MODEL].tobytes(), shapes, facts["name"])
        branch = Branch(
            name=facts["name"],
            model=model,
            shared_layers=tuple(facts["shared_layers"]),
            input_dtype=facts["input_dtype"],
            input_scale=facts["input_scale"],
            early_output=facts["early_output"],
            received_layers=tuple(facts.get("received_layers", ())),
        )
    except (KeyError, TypeError, ValueError):  # undamaged, but not in this format
        raise ModelError(f"{path} was written by another version.") from None
    found = StoredBranch(branch, variables)
    found.put(weights)
    return found


def _make(
    described: str | bytes, wanted: Mapping[str, Any], name: str
) -> tuple[keras.Model, dict[str, keras.Variable]]:
    """Returns the model, and its variables by the wanted names; shapes must agree."""
    check_description(described, name)
    try:
        with keras.utils.custom_object_scope(_OURS):
            model = keras.models.model_from_json(described)
    except Exception as error:  # Keras documents no type of error
        raise ModelError(f"Keras cannot make {name} from its description: {error}") from error
    if not isinstance(model, keras.Model) or len(model.variables) != len(wanted):
        raise ModelError(f"made from its description, {name} has other variables.")
    for variable, (path, value) in zip(model.variables, wanted.items(), strict=True):
        if value is not None and tuple(variable.shape) != tuple(value.shape):
            raise ModelError(f"made from its description, {name} has another {path!r}.")
    return model, dict(zip(wanted, model.variables, strict=True))


def check_description(described: str | bytes, name: str) -> None:
    """Raises `ModelError` for a description with classes that are not Keras' own, or with code."""
    try:
        table = json.loads(described)
    except (ValueError, RecursionError):
        raise ModelError(f"the description of {name} is not JSON.") from None
    for item in _objects(table):
        kind, module = item["class_name"], item.get("module")
        known = (
            item.get("registered_name") in _OURS
            or (module is None and kind in _PLAIN)
            or (isinstance(module, str) and module.partition(".")[0] in ("keras", "builtins"))
        )
        if not known or kind in _CODE:
            raise ModelError(
                f"{name} has {str(kind)[:60]!r}, which is not a layer of Keras or runs code; "
                "give --model FILE.py:function, as when it was exported."
            )


def _objects(table: Any) -> Iterator[dict[str, Any]]:
    """Yields every object of a description that names a class."""
    waiting = [table]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "class_name" in item:
                yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
