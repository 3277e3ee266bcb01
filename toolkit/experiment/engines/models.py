"""The model that a device of the study trains, in either engine.

Tracing and converting take seconds, so a process makes a model once for all cells that differ in
nothing but their data and their seed; every cell starts from weights of its own.
"""

from __future__ import annotations

import numpy as np

from firmware_sim.training.runtime import Array, Model
from toolkit.branch.branch import Branch
from toolkit.experiment.cell import BATCH, Cell
from toolkit.training.module import TARGET

_RUNTIME = "ai-edge-litert"  # the other one cannot live in one process with TensorFlow
_MODELS: dict[tuple[object, ...], Model] = {}
_CONVERTED: dict[tuple[object, ...], bytes] = {}


def model_for(cell: Cell, device: str, branch: Branch) -> Model:
    """A model with the branch's weights, and nothing trained."""
    key = (*cell.model_key(device), branch.input_shape)
    if (*key, device) not in _MODELS:
        make = _in_tensorflow if cell.settings.engine == "tf" else _in_tflite
        _MODELS[*key, device] = make(key, branch)
    model = _MODELS[*key, device]
    model.call("set_state", **_untrained(model, branch))
    return model


def _in_tensorflow(key: tuple[object, ...], branch: Branch) -> Model:
    from toolkit.experiment.engines.tensorflow_model import TensorFlowModel

    return TensorFlowModel(branch, batch=BATCH)


def _in_tflite(key: tuple[object, ...], branch: Branch) -> Model:
    from toolkit.conversion.convert import convert_module
    from toolkit.experiment.engines.tflite_model import StreamedModel
    from toolkit.training.module import TrainingModule

    if key not in _CONVERTED:
        module = TrainingModule(branch, batch=BATCH, runtime=_RUNTIME)
        _CONVERTED[key] = convert_module(module)
    return StreamedModel(_CONVERTED[key], runtime=_RUNTIME)


def _untrained(model: Model, branch: Branch) -> dict[str, Array]:
    """The branch's weights, in its target network too, and zeros for what the optimiser keeps."""
    own = branch.weights()
    weights = {**own} | {TARGET + name: value for name, value in own.items()}
    return {
        name: np.asarray(weights[name]) if name in weights else np.zeros(spec.shape, spec.dtype)
        for name, spec in model.inputs("set_state").items()
    }
