"""How a compiled Keras model learns, as a device does it; what it cannot do is refused.

Loss, optimiser and metrics of `model.compile` are taken as they are. Labels of classes are numbers
on a device, also where Keras would take them as one-hot rows: the loss is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from toolkit.autodiff.nested_layers import nested_layers, producer
from toolkit.branch import schedules
from toolkit.branch.learning import LossName, Supervised
from toolkit.branch.optimizers import SGD, Adam, AdamW, Optimizer, RMSProp
from toolkit.errors import ModelError

_LOSSES: Mapping[str, LossName] = {
    "sparse_categorical_crossentropy": "cross_entropy",
    "categorical_crossentropy": "cross_entropy",
    "binary_crossentropy": "binary_cross_entropy",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "huber": "huber",
}
_CLOSING = {"cross_entropy": "softmax", "binary_cross_entropy": "sigmoid"}
# What a device measures, by the names that Keras gives to metrics.
_OF_CLASSES = frozenset(
    {"accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy"}
    | {"sparse_categorical_crossentropy", "categorical_crossentropy"}
)
_OF_NUMBERS = frozenset(
    {"mae", "mean_absolute_error", "root_mean_squared_error", "r2_score", "mse"}
    | {"mean_squared_error"}
)
_UNUSED = {  # settings that a device has no counterpart of, and the values that leave them unused
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "amsgrad": False,
    "centered": False,
}


def learning_of(name: str, model: keras.Model) -> Supervised:
    """Returns how the model was compiled to learn; cross-entropy and Adam if it was not."""
    _refuse_penalties(model)
    if not model.compiled:
        return Supervised()
    if model.loss is None:
        raise ModelError(f"{name} is compiled without a loss; a device learns by one.")
    compiled = model.get_compile_config() or {}
    for key in ("loss_weights", "weighted_metrics"):
        if compiled.get(key) is not None:
            raise ModelError(f"{name} is compiled with {key}, which a device does not take.")
    loss, settings = _loss(name, model)
    _check_metrics(name, compiled.get("metrics"), loss)
    return Supervised(
        loss,
        _optimizer(name, model.optimizer),
        label_smoothing=float(settings.get("label_smoothing") or 0.0),
        huber_delta=float(settings.get("delta", 1.0)),
    )


def _loss(name: str, model: keras.Model) -> tuple[LossName, Mapping[str, Any]]:
    """Returns the loss and its settings; where it starts from must be what the model answers."""
    given = model.loss
    settings: Mapping[str, Any] = {}
    if isinstance(given, keras.losses.Loss):
        # The configuration of a loss leaves some of these out, as Huber's delta.
        settings = getattr(given, "_fn_kwargs", {})
        reduction = str(given.reduction)
        if reduction not in ("sum_over_batch_size", "mean"):
            raise ModelError(f"{name} adds its loss up by {reduction!r}; a device takes the mean.")
        function = getattr(given, "fn", None)
    else:
        function = None if isinstance(given, dict | list) else keras.losses.get(given)
    called = getattr(function, "__name__", "")
    if called not in _LOSSES or getattr(keras.losses, called, None) is not function:
        shown = called or type(given).__name__
        raise ModelError(
            f"{name} is compiled with the loss {shown}; a device knows {', '.join(_LOSSES)}."
        )
    if settings.get("ignore_class") is not None or settings.get("axis", -1) != -1:
        raise ModelError(f"{name} has a loss with ignore_class or axis, which a device lacks.")
    loss = _LOSSES[called]
    if closing := _CLOSING.get(loss):
        closes, from_logits = _closes_with(model) == closing, bool(settings.get("from_logits"))
        if closes == from_logits:
            raise ModelError(
                f"{name} is compiled with from_logits={from_logits}, and the model closes "
                f"{'with' if closes else 'without'} a {closing}; change one of the two."
            )
    return loss, settings


def _closes_with(model: keras.Model) -> str:
    """Returns the name of the activation that the output has passed last."""
    last = producer(model.outputs[0])
    while isinstance(last, keras.Model):
        last = producer(last.outputs[0])
    if isinstance(last, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(last, "activation", None), "__name__", "")


def _check_metrics(name: str, metrics: Any, loss: LossName) -> None:
    known = _OF_CLASSES if loss == "cross_entropy" else _OF_NUMBERS
    for metric in keras.tree.flatten(_names(metrics)):
        if metric not in known:
            raise ModelError(
                f"{name} is compiled with the metric {metric}, which a device does not measure; "
                f"it measures {', '.join(sorted(known))}."
            )


def _names(metrics: Any) -> list[str]:
    if metrics is None:
        return []
    if isinstance(metrics, list | tuple):
        return [name for metric in metrics for name in _names(metric)]
    if isinstance(metrics, dict):  # of a metric with settings, or by the name of an output
        if "class_name" in metrics:
            inner = metrics.get("config")
            return [inner["name"] if isinstance(inner, dict) else str(inner)]
        return [name for metric in metrics.values() for name in _names(metric)]
    return [str(metrics)]


def _optimizer(name: str, given: Any) -> Optimizer:
    kind = type(given)
    settings = given.get_config()
    for key, unused in _UNUSED.items():
        if settings.get(key, unused) != unused:
            raise ModelError(
                f"{name} is compiled with {key}={settings[key]} of {kind.__name__}, which a device "
                "does not have."
            )
    if getattr(given, "_exclude_from_weight_decay", None):
        raise ModelError(f"{name} leaves variables out of weight decay; a device decays all.")
    rate = _rate(name, settings["learning_rate"])
    more: dict[str, Any] = {
        key: settings.get(key) for key in ("clipvalue", "clipnorm", "global_clipnorm")
    }
    more["weight_decay"] = settings.get("weight_decay") or 0.0
    if kind is keras.optimizers.SGD:
        return SGD(rate, settings["momentum"], settings["nesterov"], **more)
    if kind in (keras.optimizers.Adam, keras.optimizers.AdamW):
        ours = Adam if kind is keras.optimizers.Adam else AdamW
        return ours(rate, settings["beta_1"], settings["beta_2"], settings["epsilon"], **more)
    if kind is keras.optimizers.RMSprop and not settings["momentum"]:
        return RMSProp(rate, settings["rho"], settings["epsilon"], **more)
    momentum = " with momentum" if kind is keras.optimizers.RMSprop else ""
    raise ModelError(
        f"{name} is compiled with the optimiser {kind.__name__}{momentum}; a device knows SGD, "
        "Adam, AdamW and RMSprop."
    )


def _rate(name: str, given: Any) -> float | schedules.Schedule:
    if not isinstance(given, dict):
        return float(str(np.float32(given)))  # 0.001, which Keras keeps as 0.0010000000474974513
    kind, c = given["class_name"], given["config"]
    match kind:
        case "ExponentialDecay" | "InverseTimeDecay":
            ours = getattr(schedules, kind)
            first, steps = float(c["initial_learning_rate"]), float(c["decay_steps"])
            found: schedules.Schedule = ours(first, steps, float(c["decay_rate"]), c["staircase"])
            return found
        case "PolynomialDecay" if not c["cycle"]:
            return schedules.PolynomialDecay(
                c["initial_learning_rate"], c["decay_steps"], c["end_learning_rate"], c["power"]
            )
        case "CosineDecay":
            top, rise = c.get("warmup_target"), c.get("warmup_steps") or 0
            first, steps = c["initial_learning_rate"], c["decay_steps"]
            return schedules.CosineDecay(first, steps, c["alpha"], top, rise)
        case "PiecewiseConstantDecay":
            bounds, values = map(tuple, (c["boundaries"], c["values"]))
            return schedules.PiecewiseConstant(bounds, values)
    raise ModelError(
        f"{name} is compiled with the schedule {kind}; a device knows ExponentialDecay, "
        "InverseTimeDecay, PolynomialDecay without cycle, CosineDecay and PiecewiseConstantDecay."
    )


def _refuse_penalties(model: keras.Model) -> None:
    """Raises for what Keras adds to a loss or does after a step, and a device does not."""
    for layer in nested_layers(model):
        for attribute, value in vars(layer).items():
            if value is not None and attribute.endswith(("_regularizer", "_constraint")):
                kind = attribute.strip("_")
                raise ModelError(
                    f"layer {layer.name!r} has a {kind}, which a device does not compute; take it "
                    "away, or use an optimiser with weight_decay."
                )
