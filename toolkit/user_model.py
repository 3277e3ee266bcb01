"""A user's own branch: `--model path/to/file.py:function`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from toolkit.branch import Branch
from toolkit.errors import ModelError


def load_branch(spec: str) -> Branch:
    """Calls the function; it returns (model, shared layer names), a Branch, or only a model.

    Only a model means that every layer is shared, as within a group of equal devices.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise ModelError(f"--model {spec!r} must be path/to/file.py:function.")
    function = getattr(_load(Path(path)), name, None)
    if not callable(function):
        raise ModelError(f"{path} has no function {name!r}.")
    try:
        made = function()
    except Exception as error:  # a user's code may raise anything
        raise ModelError(f"{spec} failed with {type(error).__name__}: {error}") from error
    return _branch(spec, f"{Path(path).stem}-{name}", made)


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's code may raise anything
        raise ModelError(f"{path} failed with {type(error).__name__}: {error}") from error
    return module


def _branch(spec: str, name: str, made: Any) -> Branch:
    match made:
        case Branch():
            return made
        case keras.Model():
            return _checked(name, made, tuple(layer.name for layer in made.layers))
        case (keras.Model() as model, [*layers]) if all(isinstance(n, str) for n in layers):
            return _checked(name, model, tuple(layers))
    raise ModelError(
        f"{spec} returned {type(made).__name__}; "
        "it must return a Keras model, or (model, names of the shared layers)."
    )


def _checked(name: str, model: keras.Model, shared: tuple[str, ...]) -> Branch:
    if not model.built:
        raise ModelError(f"the model of {name} has no input shape; begin it with keras.Input.")
    return Branch(name=name, model=model, shared_layers=shared)
