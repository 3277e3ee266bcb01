"""The device side: runs and trains a bundle in a stock TFLite runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firmware_sim.application.device import Device as Device
    from firmware_sim.predicting.prediction import Prediction as Prediction

__all__ = ("Device", "Prediction")


def __getattr__(name: str) -> Any:
    """Loads what people import when they do, so that every other import stays light."""
    if name == "Device":
        from firmware_sim.application.device import Device

        return Device
    if name == "Prediction":
        from firmware_sim.predicting.prediction import Prediction

        return Prediction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
