"""Describes a bundle that is being written: the branch, its training module and the files."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from broker.protocol.slice import Slice
from firmware_sim.bundle.manifest import BranchFacts, BranchInput, Manifest, Measured, Tensor
from firmware_sim.bundle.reader import BRANCH, FILES, PREDICT, PREFIX, file_entry
from firmware_sim.normalisation import Normalisation
from firmware_sim.tensor_spec import TensorSpec
from profiles import Profile
from toolkit.branch.branch import Branch
from toolkit.branch.counting import Counts
from toolkit.branch.learning import DoubleQ
from toolkit.export.memory_estimate import MemoryEstimate
from toolkit.export.prefix import describe_frozen, describe_prefix
from toolkit.training.module import TrainingModule
from toolkit.tuning.files import SourcedTuning
from toolkit.tuning.layers import layers_of

# Settings that say nothing where they are zero or None.
_SWITCHED_OFF = frozenset(
    {"weight_decay", "clipvalue", "clipnorm", "global_clipnorm", "label_smoothing", "nesterov"}
)


def describe(
    *,
    branch: Branch,
    profile: Profile,
    module: TrainingModule,
    tuning: SourcedTuning,
    counts: Counts,
    shared: Slice,
    calibration: str,
    normalisation: Normalisation | None,
    measured: Measured,
    estimated: MemoryEstimate,
    folder: Path,
) -> Manifest:
    """Returns the manifest of the files in `folder`."""
    prefix = describe_prefix(module, profile.frozen_precision)
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
            target=branch.target,
        ),
        batch_size=module.batch,
        micro_batch_size=module.micro_batch,
        runtime=profile.runtime,
        tuning=tuning.describe(layers_of(branch)),
        calibration=calibration,
        normalisation=normalisation,
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
        update=branch.update,
        prefix=prefix,
        frozen=describe_frozen(module.programs),
        files={
            name: file_entry(folder / name)
            for name in (*FILES, PREFIX, PREDICT, BRANCH)
            if name in FILES or (folder / name).exists()
        },
    )


def _learning(branch: Branch) -> dict[str, Any]:
    learning = branch.learning
    kind = "double-q" if isinstance(learning, DoubleQ) else "supervised"
    optimizer = {"name": type(learning.optimizer).__name__, **_used(asdict(learning.optimizer))}
    early = {"early_output": branch.early_output} if branch.early_output else {}
    stated = {key: value for key, value in asdict(learning).items() if key != "target"}
    if kind == "supervised" and stated["loss"] != "huber":
        del stated["huber_delta"]
    stated = _used(stated)
    return {"kind": kind, **stated, "optimizer": optimizer, **early}


def _used(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings without those that are switched off."""
    return {n: value for n, value in settings.items() if value or n not in _SWITCHED_OFF}


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
