"""Targets that read a file from elsewhere: the manifest of a bundle, and profiles."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from firmware_sim.bundle.reader import FILES, MANIFEST, open_bundle
from firmware_sim.errors import BundleError
from profiles import ProfileError, load_profile, profile_names
from toolkit.bench.fuzz.samples import SLICE
from toolkit.bench.fuzz.target import Parser, Target, check_sentence


def _open_bundle(folder: Path) -> Parser:
    for name in FILES:
        (folder / name).write_bytes(name.encode())

    def run(data: bytes) -> None:
        (folder / MANIFEST).write_bytes(data)
        try:
            open_bundle(folder)
        except BundleError as error:
            check_sentence(error)

    return Parser(run)


def _bundle_seeds() -> list[bytes]:
    profile = load_profile("weak")
    tensors = [
        {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "fingerprint": t.fingerprint}
        for t in SLICE.tensors
    ]
    manifest = {
        "format": 1,
        "fingerprint": SLICE.fingerprint,
        "versions": {"stemshare": "0.1.0"},
        "profile": asdict(profile),
        "branch": {
            "name": "digits",
            "parameters": 36,
            "shared_parameters": 36,
            "operations": 60,
            "input": {"shape": [6], "dtype": "uint8", "scale": 0.5},
            "learning": {"loss": "mse"},
        },
        "batch_size": 8,
        "micro_batch_size": 4,
        "runtime": profile.runtime,
        "calibration": "none",
        "tensors": [{**tensor, "trainable": True, "shared": True} for tensor in tensors],
        "signatures": {"infer": {"inputs": {"x": ["float32", [1, 6]]}}},
        "measured": None,
        "files": {
            name: {"bytes": len(name), "sha256": hashlib.sha256(name.encode()).hexdigest()}
            for name in FILES
        },
    }
    return [json.dumps(manifest).encode()]


def _open_profile(folder: Path) -> Parser:
    file = folder / "mine.toml"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        try:
            load_profile(file)
        except ProfileError as error:
            check_sentence(error)

    return Parser(run)


def _profile_seeds() -> list[bytes]:
    return [(files("profiles") / f"{name}.toml").read_bytes() for name in profile_names()]


TARGETS = (
    Target("bundle", "the manifest of a bundle", _bundle_seeds, _open_bundle),
    Target("profile", "profiles in TOML", _profile_seeds, _open_profile),
)
