"""A device opens a bundle only if every file is the one that its manifest describes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.reader import open_bundle
from firmware_sim.errors import BundleError

CONTENT = {"model.tflite": b"model", "shared.onnx": b"slice", "infer.tflite": b"infer"}


def described(content: dict[str, bytes] = CONTENT) -> dict[str, Any]:
    return {
        "format": 1,
        "profile": {},
        "branch": {},
        "tensors": [],
        "signatures": {},
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in content.items()
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest bundle that can be opened."""
    for name, data in CONTENT.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "manifest.json").write_text(json.dumps(described()))
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_bundle(folder)
    return str(caught.value)


def test_a_whole_bundle_is_opened(folder: Path):
    bundle = open_bundle(folder)
    assert bundle.manifest == described()
    assert (bundle.model, bundle.slice, bundle.infer) == tuple(folder / name for name in CONTENT)


def test_large_files_are_digested_in_pieces(folder: Path):
    content = CONTENT | {"model.tflite": bytes(3 * 2**20 + 1)}
    (folder / "model.tflite").write_bytes(content["model.tflite"])
    (folder / "manifest.json").write_text(json.dumps(described(content)))
    assert open_bundle(folder).manifest["files"]["model.tflite"]["bytes"] == 3 * 2**20 + 1


def test_a_folder_without_manifest_is_refused(folder: Path):
    (folder / "manifest.json").unlink()
    assert refusal(folder) == f"{folder} is not a bundle: it has no manifest.json."
    (folder / "manifest.json").mkdir()
    assert refusal(folder).startswith(f"{folder / 'manifest.json'} cannot be read as JSON (")


def test_a_missing_folder_is_refused(tmp_path: Path):
    missing = tmp_path / "none"
    assert refusal(missing) == f"there is no bundle at {missing}; `toolkit export` writes one."


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (b"", "cannot be read as JSON (Expecting value: line 1 column 1 (char 0))."),
        (b'{"format": 1, "fil', "cannot be read as JSON (Unterminated string starting at: "),
        (b'{"format": "\xff"}', "cannot be read as JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[" * 200_000, "cannot be read as JSON (maximum recursion depth exceeded"),
        (b"[1]", "does not hold a manifest."),
        (b"{}", "has format None; this version reads 1."),
        (b'{"format": 2}', "has format 2; this version reads 1."),
        (b'{"format": "1"}', "has format '1'; this version reads 1."),
        (b'{"format": 1}', "does not list the bundle's files."),
        (b'{"format": 1, "files": []}', "does not list the bundle's files."),
        (b'{"format": 1, "files": {}, "branch": {}}', "lacks profile, signatures, tensors."),
        (b" " * (4 * 2**20 + 1), "is larger than any manifest."),
    ],
    ids=["empty", "cut off", "not UTF-8", "deep", "a list", "no format", "format 2", "format '1'",
         "no files", "list of files", "parts missing", "huge"],
)  # fmt: skip
def test_a_bad_manifest_is_refused(folder: Path, manifest: bytes, problem: str):
    file = folder / "manifest.json"
    file.write_bytes(manifest)
    assert refusal(folder).startswith(f"{file} {problem}")


@pytest.mark.parametrize("name", CONTENT)
def test_every_file_must_be_described_and_whole(folder: Path, name: str):
    file = folder / name
    file.write_bytes(CONTENT[name][:-1])
    assert refusal(folder) == f"{file} is damaged: it has 4 bytes, and its manifest says 5."
    file.write_bytes(CONTENT[name][:-1] + b"?")
    assert refusal(folder) == f"{file} is damaged: its digest is not the manifest's."
    file.unlink()
    assert refusal(folder) == f"{file} cannot be read (No such file or directory)."

    file.write_bytes(CONTENT[name])
    for entry in (None, 5, {"bytes": 5}):
        manifest = described()
        manifest["files"][name] = entry
        (folder / "manifest.json").write_text(json.dumps(manifest))
        assert refusal(folder) == f"the manifest beside {file} does not describe it."
