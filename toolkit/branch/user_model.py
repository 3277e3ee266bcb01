"""A user's own branch: `--model path/to/file.py:function`, or `…:function:width`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from toolkit.autodiff.nested_layers import nested_layers
from toolkit.branch.branch import Branch
from toolkit.branch.cascade import cascade
from toolkit.branch.learning import DoubleQ, Learning, Supervised
from toolkit.errors import ModelError

ALL = "all"  # instead of the names of shared layers


def load_branch(spec: str) -> Branch:
    """Calls the function; it returns (model, shared layer names), a Branch, or only a model.

    Only a model means that every layer is shared, as within a group of equal devices. A function
    that takes a width gets the one in path/to/file.py:function:width. Layers without a name get
    one from Keras that depends on the file and the function alone.
    """
    place, _, width = spec.rpartition(":")
    if width.isdecimal() and ":" in place:
        return load_function_of_width(place)(int(width))
    function = _function(spec)
    if not _accepts(function):
        raise ModelError(f"{spec} takes arguments; only a width can be given, as {spec}:16.")
    return _called(spec, _name(spec), function)


def load_cascade(
    weak: str, strong: str, *, share: str | None = None, branch_dropout: float | None = None
) -> Branch:
    """Returns the strong branch of a cascade of two functions; `share` is about the weak one.

    The weak network is made first: it then has the initial weights of its own bundle.
    """
    light = sharing(load_branch(weak), share)
    return cascade(light, load_branch(strong), branch_dropout=branch_dropout)


def sharing(branch: Branch, layers: str | None) -> Branch:
    """Returns the branch with other shared layers: `all`, or names with commas; None: its own."""
    if layers is None:
        return branch
    if layers == ALL:
        return replace(branch, shared_layers=all_layers(branch.model))
    names = [name.strip() for name in layers.split(",")]
    return replace(branch, shared_layers=tuple(name for name in names if name))


def all_layers(model: keras.Model) -> tuple[str, ...]:
    """The names of all layers, those inside others included."""
    inputs = keras.layers.InputLayer
    return tuple(layer.name for layer in nested_layers(model) if not isinstance(layer, inputs))


def load_function_of_width(spec: str) -> Callable[[int], Branch]:
    """A function from a width to the branch that is so wide."""
    if not _accepts(_function(spec), 1):
        raise ModelError(f"{spec} does not take a width; it must be as def branch(width): ….")
    return lambda width: _called(
        f"{spec}:{width}", f"{_name(spec)}-{width}", partial(_function(spec), width)
    )


def _function(spec: str) -> Callable[..., Any]:
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise ModelError(f"--model {spec!r} must be path/to/file.py:function.")
    function = getattr(_load(Path(path)), name, None)
    if not callable(function):
        raise ModelError(f"{path} has no function {name!r}.")
    found: Callable[..., Any] = function
    return found


def _accepts(function: Callable[..., Any], *arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature; the call will show
        return True
    return True


def _name(spec: str) -> str:
    path, _, name = spec.rpartition(":")
    return f"{Path(path).stem}-{name}"


def _called(spec: str, name: str, function: Callable[[], Any]) -> Branch:
    try:
        made = function()
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ModelError(f"{spec} failed with {type(error).__name__}: {error}") from error
    return _branch(spec, name, made)


def _load(path: Path) -> ModuleType:
    """Runs the file, with Keras' counters of names at their start.

    Otherwise the second of two functions would have a dense_2 where it has a dense alone.
    """
    if not path.is_file():
        raise ModelError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    keras.utils.clear_session(free_memory=False)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ModelError(f"{path} failed with {type(error).__name__}: {error}") from error
    return module


def _branch(spec: str, name: str, made: Any) -> Branch:
    match made:
        case Branch():
            _check(made.name, made.model, made.learning)
            return made
        case keras.Model():
            _check(name, made, Supervised())
            return Branch(name, made, all_layers(made))
        case (keras.Model() as model, [*layers]) if all(isinstance(n, str) for n in layers):
            _check(name, model, Supervised())
            return Branch(name, model, tuple(layers))
    raise ModelError(
        f"{spec} returned {type(made).__name__}; "
        "it must return a Keras model, or (model, names of the shared layers)."
    )


def _check(name: str, model: keras.Model, learning: Learning) -> None:
    """What would otherwise fail deep inside, where no sentence can name the cause."""
    takes = getattr(model, "input_shape", None)
    if not model.built or takes is None:
        raise ModelError(f"the model of {name} has no input shape; begin it with keras.Input.")
    if not isinstance(takes, tuple) or None in takes[1:]:
        raise ModelError(f"the model of {name} takes {takes}; it must be one input of fixed shape.")
    for layer in nested_layers(model):
        policy = layer.dtype_policy.name
        if policy != "float32" and not isinstance(layer, keras.layers.InputLayer):
            raise ModelError(f"layer {layer.name!r} computes in {policy}; only float32 can train.")
    chooses = isinstance(learning, DoubleQ) or learning.loss == "cross_entropy"
    output = model.output_shape
    if chooses and isinstance(output, tuple) and len(output) != 2:  # tracing refuses several
        raise ModelError(f"the model of {name} answers {output}; it must be (None, classes).")
