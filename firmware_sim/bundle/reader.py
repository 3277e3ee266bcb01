"""Reads a bundle: the folder that `toolkit export` writes for one profile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firmware_sim.errors import BundleError

FORMAT = 1  # of the bundle; readers refuse any other
MANIFEST = "manifest.json"
MODEL = "model.tflite"
SLICE = "shared.onnx"
INFER = "infer.tflite"
FILES = (MODEL, SLICE, INFER)
_MANIFEST_LIMIT = 4 * 2**20  # bytes
_CHUNK = 2**20


@dataclass(frozen=True)
class Bundle:
    """A checked bundle: every file is there and is the one the manifest describes."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def slice(self) -> Path:
        return self.folder / SLICE

    @property
    def infer(self) -> Path:
        return self.folder / INFER


def open_bundle(folder: Path) -> Bundle:
    """Checks sizes and digests before anything else reads the files."""
    if not folder.is_dir():
        raise BundleError(f"there is no bundle at {folder}; `toolkit export` writes one.")
    manifest = _read_manifest(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise BundleError(
            f"{folder / MANIFEST} has format {manifest.get('format')!r}; "
            f"this version reads {FORMAT}."
        )
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise BundleError(f"{folder / MANIFEST} does not list the bundle's files.")
    if missing := sorted({"profile", "branch", "tensors", "signatures"} - manifest.keys()):
        raise BundleError(f"{folder / MANIFEST} lacks {', '.join(missing)}.")
    for name in FILES:
        _check_file(folder / name, files.get(name))
    return Bundle(folder, manifest)


def file_digest(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            found.update(piece)
    return found.hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
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


def _check_file(path: Path, entry: Any) -> None:
    if not isinstance(entry, dict) or not {"bytes", "sha256"} <= entry.keys():
        raise BundleError(f"the manifest beside {path} does not describe it.")
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise BundleError(
                f"{path} is damaged: it has {size} bytes, and its manifest says {entry['bytes']}."
            )
        if file_digest(path) != entry["sha256"]:
            raise BundleError(f"{path} is damaged: its digest is not the manifest's.")
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}).") from None
