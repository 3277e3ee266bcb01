"""Trained values of shared tensors, from whichever file holds them.

a bundle, or its shared.onnx    the values that the branch was exported with
an aggregator's state folder    θ_shared after its last merge; also its snapshot.safetensors alone
a file .safetensors             tensors by name, as `toolkit checkout --slice` writes them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from broker.aggregator.slice_file import LIMIT, read_slice
from broker.aggregator.storage.store import SNAPSHOT, read_snapshot
from broker.errors import SliceError
from broker.protocol.slice import Slice, Tensors
from broker.protocol.wire import META

_SLICE = "shared.onnx"


@dataclass(frozen=True, eq=False)
class StartValues:
    """Tensors by name, and where they come from, in words."""

    origin: str
    tensors: Tensors

    def of(self, known: Slice) -> Tensors:
        """Returns the values of the tensors in the slice; raises `SliceError` if none fits."""
        found = {}
        for tensor in known.tensors:
            value = self.tensors.get(tensor.name)
            if value is None:
                continue
            if value.shape != tensor.shape or value.dtype != np.float32:
                raise SliceError(
                    f"{self.origin} has tensor {tensor.name!r} as {value.dtype}"
                    f"{list(value.shape)}, and the slice as float32{list(tensor.shape)}."
                )
            if not np.isfinite(value).all():
                raise SliceError(f"{self.origin} has tensor {tensor.name!r}, which is not finite.")
            found[tensor.name] = value
        if not found:
            raise SliceError(f"{self.origin} holds no tensor of the slice.")
        return found


def read_start_values(path: Path) -> StartValues:
    """Returns what a bundle, a state folder of an aggregator, or a file holds."""
    if (path / _SLICE).is_file():
        path = path / _SLICE
    elif (path / SNAPSHOT).is_file():
        path = path / SNAPSHOT
    elif path.is_dir():
        raise SliceError(f"{path} is neither a bundle nor the state folder of an aggregator.")
    if path.suffix == ".onnx":
        return StartValues(str(path), read_slice(path)[1])
    return _read_safetensors(path)


def _read_safetensors(path: Path) -> StartValues:
    try:
        if path.stat().st_size > LIMIT:
            raise SliceError(f"{path} is larger than the limit of {LIMIT} bytes.")
        with safe_open(path, framework="numpy") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            if META not in metadata:
                return StartValues(str(path), {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except OSError as error:
        raise SliceError(f"{path} cannot be read ({error.strerror or error}).") from None
    except (SafetensorError, ValueError, TypeError) as error:
        raise SliceError(f"{path} is not a .safetensors file ({error}).") from None
    snapshot = read_snapshot(path)
    return StartValues(f"{path} after round {snapshot.state.round}", snapshot.state.shared)
