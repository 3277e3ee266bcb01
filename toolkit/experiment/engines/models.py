"""The model that a device of a study trains, in either engine.

Tracing and converting take seconds, so a process builds a model once for all cells that differ
only in their data and their seed; every cell starts from its own weights.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model
from toolkit.branch.branch import Branch
from toolkit.experiment.cell import BATCH, Cell
from toolkit.training.module import TARGET

_RUNTIME = "ai-edge-litert"  # tflite-runtime cannot be loaded beside TensorFlow
_MODELS: dict[tuple[object, ...], Model] = {}
_CONVERTED: dict[tuple[object, ...], Path] = {}


def model_for(cell: Cell, device: str, branch: Branch) -> Model:
    """Returns a model with the weights of `branch` and an optimiser that has taken no step."""
    key = (*cell.model_key(device), branch.input_shape)
    if (*key, device) not in _MODELS:
        make = _in_tensorflow if cell.options.engine == "tf" else _in_tflite
        _MODELS[*key, device] = make(key, branch)
    model = _MODELS[*key, device]
    model.call("set_state", **_untrained(model, branch))
    return model


def _in_tensorflow(key: tuple[object, ...], branch: Branch) -> Model:
    from toolkit.experiment.engines.tensorflow_model import TensorFlowModel

    return TensorFlowModel(branch, batch=BATCH)


def _in_tflite(key: tuple[object, ...], branch: Branch) -> Model:
    from toolkit.conversion.convert import convert_module
    from toolkit.training.module import TrainingModule

    if key not in _CONVERTED:
        module = TrainingModule(branch, batch=BATCH, runtime=_RUNTIME, whole=True)
        _CONVERTED[key] = Path(_folder().name) / f"{len(_CONVERTED)}.tflite"
        _CONVERTED[key].write_bytes(convert_module(module))
    return Model(_CONVERTED[key], runtime=_RUNTIME)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """The folder of converted models, which is removed when the process ends."""
    return tempfile.TemporaryDirectory()


def _untrained(model: Model, branch: Branch) -> dict[str, Array]:
    """The branch's weights, also for the target network, and zeros for the optimiser's slots."""
    own = branch.weights()
    weights = {**own} | {TARGET + name: value for name, value in own.items()}
    return {
        name: np.asarray(weights[name]) if name in weights else np.zeros(spec.shape, spec.dtype)
        for name, spec in model.inputs("set_state").items()
    }
