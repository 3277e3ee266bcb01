"""Describes a bundle that is being written: the branch, its training module and the files."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from broker.protocol.slice import Slice
from firmware_sim.bundle.manifest import BranchFacts, BranchInput, Manifest, Measured, Tensor
from firmware_sim.bundle.reader import FILES, file_entry
from firmware_sim.tensor_spec import TensorSpec
from profiles import Profile
from toolkit.branch.branch import Branch
from toolkit.branch.counting import Counts
from toolkit.branch.learning import DoubleQ
from toolkit.export.memory_estimate import MemoryEstimate
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
    measured: Measured,
    estimated: MemoryEstimate,
    folder: Path,
) -> Manifest:
    """Returns the manifest of the files in `folder`."""
    return Manifest(
        fingerprint=shared.fingerprint,
        versions={
            "stemshare": version("stemshare"),
            "tensorflow": version("tensorflow"),
            "keras": version("keras"),
            "python": platform.python_version(),
        },
        profile=profile,
        branch=BranchFacts(
            name=branch.name,
            parameters=counts.parameters,
            shared_parameters=counts.shared_parameters,
            operations=counts.operations,
            input=BranchInput(branch.input_shape, branch.input_dtype, branch.input_scale),
            learning=_learning(branch),
        ),
        batch_size=module.batch,
        micro_batch_size=module.micro_batch,
        runtime=profile.runtime,
        tuning=tuning.describe(layers_of(branch)),
        calibration=calibration,
        tensors=_tensors(branch, module, shared),
        signatures={
            name: {
                n: TensorSpec(tuple(s.shape), np.dtype(s.dtype.name))
                for n, s in signature.inputs.items()
            }
            for name, signature in sorted(module.signatures().items())
        },
        measured=measured,
        estimated=asdict(estimated),
        files={name: file_entry(folder / name) for name in FILES},
    )


def _learning(branch: Branch) -> dict[str, Any]:
    learning = branch.learning
    kind = "double-q" if isinstance(learning, DoubleQ) else "supervised"
    optimizer = {"name": type(learning.optimizer).__name__, **asdict(learning.optimizer)}  # type: ignore[call-overload]
    early = {"early_output": branch.early_output} if branch.early_output else {}
    return {"kind": kind, **asdict(learning), "optimizer": optimizer, **early}


def _tensors(branch: Branch, module: TrainingModule, shared: Slice) -> tuple[Tensor, ...]:
    """Everything that `get_state` returns; with a fingerprint where a tensor is shared."""
    prints = {tensor.name: tensor.fingerprint for tensor in shared.tensors}
    trainable = set(branch.trainable_names)
    return tuple(
        Tensor(
            name=name,
            shape=tuple(shape),
            dtype="float32",
            trainable=name in trainable,
            shared=name in prints,
            fingerprint=prints.get(name, ""),
        )
        for name, shape in module.state_shapes.items()
    )
