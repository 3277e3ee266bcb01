"""A user's own branch: `--model path/to/file.py:function`, `…:function:width`, or `file.keras`."""

from __future__ import annotations

import fnmatch
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from toolkit.autodiff.nested_layers import nested_layers
from toolkit.branch.branch import Branch, all_layers, sharing_everything
from toolkit.branch.cascade import cascade
from toolkit.branch.compiled import learning_of
from toolkit.branch.learning import Learning
from toolkit.branch.target import target_of
from toolkit.errors import ModelError

KERAS = ".keras"
ALL = "all"  # instead of the names of shared layers


def load_branch(spec: str) -> Branch:
    """Calls the function; it returns (model, shared layer names), a Branch, or only a model.

    A model, also one in a .keras file, learns as it was compiled to. Only a model means that every
    layer is shared, as within a group of equal devices. A function
    that takes a width gets the one in path/to/file.py:function:width. Layers without a name get
    one from Keras that depends on the file and the function alone.
    """
    if spec.endswith(KERAS):
        return _branch(spec, Path(spec).stem, _saved(Path(spec)))
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
    """Returns the branch with other shared layers; None: its own.

    They are `all`, or names and patterns such as stem*, with commas between.
    """
    if layers is None:
        return branch
    if layers == ALL:
        return sharing_everything(branch)
    return replace(branch, shared_layers=_listed(layers, branch))


def receiving(branch: Branch, layers: str | None) -> Branch:
    """Returns the branch that takes these layers from its fleet, and does not train them."""
    if layers is None:
        return branch
    names = _listed(layers, branch)
    shared = (*branch.shared_layers, *(n for n in names if n not in branch.shared_layers))
    return replace(branch, shared_layers=shared, received_layers=names)


def _listed(layers: str, branch: Branch) -> tuple[str, ...]:
    """Returns the named layers, and those with weights that a pattern such as stem* fits."""
    names = [layer.name for layer in nested_layers(branch.model) if layer.weights]
    chosen: dict[str, None] = {}
    for pattern in filter(None, (name.strip() for name in layers.split(","))):
        found = fnmatch.filter(names, pattern)
        if not found and set(pattern) & set("*?["):
            raise ModelError(
                f"no layer with weights is called like {pattern!r}; there are {', '.join(names)}."
            )
        chosen |= dict.fromkeys(found or [pattern])
    return tuple(chosen)


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


def _saved(path: Path) -> keras.Model:
    """Returns the model in a .keras file; code inside it is not run."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}.")
    keras.utils.clear_session(free_memory=False)
    try:
        with warnings.catch_warnings():  # that an optimiser has not started; a device starts anew
            warnings.simplefilter("ignore")
            return keras.models.load_model(path, safe_mode=True)
    except Exception as error:  # Keras documents no type of error
        first_line = str(error).strip().partition("\n")[0]
        raise ModelError(f"Keras cannot load {path}: {first_line}") from error


def _branch(spec: str, name: str, made: Any) -> Branch:
    match made:
        case Branch():
            _check(made.name, made.model, made.learning)
            return made
        case keras.Model():
            learning = learning_of(name, made)
            _check(name, made, learning)
            return Branch(name, made, all_layers(made), learning)
        case (keras.Model() as model, [*layers]) if all(isinstance(n, str) for n in layers):
            learning = learning_of(name, model)
            _check(name, model, learning)
            return Branch(name, model, tuple(layers), learning)
    raise ModelError(
        f"{spec} returned {type(made).__name__}; "
        "it must return a Keras model, or (model, names of the shared layers)."
    )


def _check(name: str, model: keras.Model, learning: Learning) -> None:
    """What would otherwise fail deep inside, where no sentence can name the cause."""
    takes = getattr(model, "input_shape", None)
    if not model.built or takes is None:
        raise ModelError(f"the model of {name} has no input shape; begin it with keras.Input.")
    if not isinstance(takes, tuple):
        raise ModelError(
            f"the model of {name} takes {takes}; a branch has one input: return "
            "toolkit.branch.one_input.one_input(model), and give it rows."
        )
    if None in takes[1:]:
        raise ModelError(f"the model of {name} takes {takes}; it must be one input of fixed shape.")
    for layer in nested_layers(model):
        policy = layer.dtype_policy.name
        if policy != "float32" and not isinstance(layer, keras.layers.InputLayer):
            raise ModelError(f"layer {layer.name!r} computes in {policy}; only float32 can train.")
    if isinstance(model.output_shape, tuple):  # tracing refuses several
        target_of(name, learning, takes=takes, answers=model.output_shape)
