"""Manifests without a bundle, for code that only reads what a manifest states."""

from __future__ import annotations

from typing import Any

import numpy as np

from firmware_sim.bundle.manifest import BranchFacts, BranchInput, FileEntry, Manifest, Tensor
from firmware_sim.bundle.reader import FILES
from firmware_sim.bundle.target import A_CLASS
from firmware_sim.tensor_spec import TensorSpec
from profiles import load_profile

MIB = 2**20


def a_manifest(**changes: Any) -> Manifest:
    """A small branch for profile weak; `changes` replace fields."""
    facts: dict[str, Any] = {
        "fingerprint": "f",
        "versions": {"stemshare": "0"},
        "profile": load_profile("weak"),
        "branch": BranchFacts("own", 4, 2, 8, BranchInput((8, 8, 1), "uint8", 0.0625), {}, A_CLASS),
        "batch_size": 32,
        "micro_batch_size": 32,
        "runtime": "ai-edge-litert",
        "calibration": "synthetic images",
        "tensors": (
            Tensor("stem/kernel", (2,), "float32", True, True, "a"),
            Tensor("head/kernel", (2,), "float32", True, False),
        ),
        "signatures": {"train": inputs(x=("uint8", 32, 8, 8, 1), y=("int32", 32))},
        "files": {name: FileEntry(5, "0" * 64) for name in FILES},
    }
    return Manifest(**facts | changes)


def inputs(**specs: tuple[Any, ...]) -> dict[str, TensorSpec]:
    """What a signature takes: x=("uint8", 32, 8, 8, 1)."""
    return {name: TensorSpec(tuple(s), np.dtype(dtype)) for name, (dtype, *s) in specs.items()}
