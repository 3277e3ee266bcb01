"""`manifest.json`: what a bundle holds and how it came about."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from broker.protocol.slice import Slice
from firmware_sim.bundle.reader import FILES, FORMAT, file_digest
from profiles import Profile
from toolkit.branch.branch import Branch
from toolkit.branch.counting import Counts
from toolkit.branch.learning import DoubleQ
from toolkit.training.module import TrainingModule
from toolkit.tuning.files import SourcedTuning
from toolkit.tuning.layers import layers_of


def describe(
    *,
    branch: Branch,
    profile: Profile,
    module: TrainingModule,
    tuning: SourcedTuning,
    counts: Counts,
    shared: Slice,
    calibration: str,
    measured: dict[str, Any],
    estimated: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """The manifest of the files in `folder`."""
    return {
        "format": FORMAT,
        "fingerprint": shared.fingerprint,
        "versions": {
            "stemshare": version("stemshare"),
            "tensorflow": version("tensorflow"),
            "keras": version("keras"),
            "python": platform.python_version(),
        },
        "profile": asdict(profile),
        "branch": {
            "name": branch.name,
            "parameters": counts.parameters,
            "shared_parameters": counts.shared_parameters,
            "operations": counts.operations,
            "input": {
                "shape": branch.input_shape,
                "dtype": branch.input_dtype,
                "scale": branch.input_scale,
            },
            "learning": _learning(branch),
        },
        "batch_size": module.batch,
        "micro_batch_size": module.micro_batch,
        "runtime": profile.runtime,
        "tuning": tuning.describe(layers_of(branch)),
        "calibration": calibration,
        "tensors": _tensors(branch, module, shared),
        "signatures": {
            name: {
                "inputs": {n: [s.dtype.name, list(s.shape)] for n, s in signature.inputs.items()}
            }
            for name, signature in sorted(module.signatures().items())
        },
        "measured": measured,
        "estimated": estimated,
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "sha256": file_digest(folder / name)}
            for name in FILES
        },
    }


def _learning(branch: Branch) -> dict[str, Any]:
    learning = branch.learning
    kind = "double-q" if isinstance(learning, DoubleQ) else "supervised"
    optimizer = {"name": type(learning.optimizer).__name__, **asdict(learning.optimizer)}  # type: ignore[call-overload]
    return {"kind": kind, **asdict(learning), "optimizer": optimizer}


def _tensors(branch: Branch, module: TrainingModule, shared: Slice) -> list[dict[str, Any]]:
    """Everything that `get_state` answers; fingerprints where a tensor is shared."""
    prints = {tensor.name: tensor.fingerprint for tensor in shared.tensors}
    trainable = set(branch.trainable_names)
    return [
        {
            "name": name,
            "shape": list(shape),
            "dtype": "float32",
            "trainable": name in trainable,
            "shared": name in prints,
            **({"fingerprint": prints[name]} if name in prints else {}),
        }
        for name, shape in module.state_shapes.items()
    ]
