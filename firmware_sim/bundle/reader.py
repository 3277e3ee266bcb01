"""Reads a bundle: the folder that `toolkit export` writes for one profile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.bundle.manifest import (
    FEATURES,
    FileEntry,
    Inputs,
    Manifest,
    Measured,
    not_described,
    parse,
)
from firmware_sim.errors import BundleError
from firmware_sim.tensor_spec import TensorSpec

MANIFEST = "manifest.json"
MODEL = "model.tflite"
SLICE = "shared.onnx"
INFER = "infer.tflite"
PREFIX = "prefix.tflite"  # in bundles whose branch begins with frozen layers
FILES = (MODEL, SLICE, INFER)
PREDICT = "predict.tflite"  # of branches that learn from examples
BRANCH = "branch.safetensors"  # for `toolkit checkout`; a device neither has nor loads it
_MANIFEST_LIMIT = 4 * 2**20  # bytes


@dataclass(frozen=True)
class Bundle:
    """A checked bundle: every file is there and is the one the manifest describes."""

    folder: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def slice(self) -> Path:
        return self.folder / SLICE

    @property
    def infer(self) -> Path:
        return self.folder / INFER

    @property
    def predict(self) -> Path:
        """The program that answers beside training."""
        if PREDICT not in self.manifest.files:
            raise BundleError(
                f"the bundle at {self.folder} has no {PREDICT}, which answers while a device "
                "trains; export it again."
            )
        return self.folder / PREDICT

    @property
    def branch(self) -> Path | None:
        """The branch itself, checked; None where it cannot be stored, or on a device."""
        entry, path = self.manifest.files.get(BRANCH), self.folder / BRANCH
        if entry is None or not path.exists():
            return None
        _check_file(path, entry)
        return path

    @property
    def prefix(self) -> Path | None:
        return self.folder / PREFIX if self.manifest.prefix else None

    @property
    def model_digest(self) -> str:
        """The digest that checkpoints belong to."""
        return self.manifest.files[MODEL].sha256

    @property
    def training_inputs(self) -> Inputs:
        """What a device trains on, by name: examples, also where `train` takes features of them."""
        if "train" not in self.manifest.signatures:
            raise BundleError(
                f"the manifest of {self.folder} does not say what its training takes."
            )
        takes, one = self.manifest.signatures["train"], self.manifest.branch.input
        if self.manifest.prefix is None:
            return takes
        example = np.dtype(one.dtype)
        return {
            name.removesuffix(FEATURES): TensorSpec((spec.shape[0], *one.shape), example)
            if name.endswith(FEATURES)
            else spec
            for name, spec in takes.items()
        }

    @property
    def measured(self) -> Measured:
        """What training took when the bundle was exported."""
        if self.manifest.measured is None:
            raise BundleError(
                f"the manifest of {self.folder} does not say how much memory training takes."
            )
        return self.manifest.measured


def open_bundle(folder: Path) -> Bundle:
    """Checks sizes and digests before anything else reads the files."""
    if not folder.is_dir():
        raise BundleError(f"there is no bundle at {folder}; `toolkit export` writes one.")
    manifest = parse(_read_json(folder / MANIFEST), folder / MANIFEST)
    for name in files_of(manifest):
        _check_file(folder / name, manifest.files.get(name))
    return Bundle(folder, manifest)


def files_of(manifest: Manifest) -> tuple[str, ...]:
    """The names of all files that a device has of a bundle."""
    prefix = (PREFIX,) if manifest.prefix else ()
    predict = (PREDICT,) if PREDICT in manifest.files else ()
    return *FILES, *prefix, *predict


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = json.dumps(manifest.to_json(), indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def file_entry(path: Path) -> FileEntry:
    """Describes a file of a bundle that is being written."""
    return FileEntry(path.stat().st_size, file_digest(path))


def file_digest(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MANIFEST_LIMIT:
            raise BundleError(f"{path} is larger than any manifest.")
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path.parent} is not a bundle: it has no {MANIFEST}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read as JSON ({error}).") from None
    if not isinstance(manifest, dict):
        raise BundleError(f"{path} does not hold a manifest.")
    return manifest


def _check_file(path: Path, entry: FileEntry | None) -> None:
    if entry is None:
        raise not_described(path)
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(
                f"{path} is damaged: it has {size} bytes, and its manifest says {entry.bytes}."
            )
        if file_digest(path) != entry.sha256:
            raise BundleError(f"{path} is damaged: its digest is not the manifest's.")
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}).") from None
