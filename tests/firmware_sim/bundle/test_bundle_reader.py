"""A device opens a bundle only if its manifest is whole and every file is the one it describes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.manifest import FileEntry, Measured, parse
from firmware_sim.bundle.reader import MANIFEST, Bundle, open_bundle, write_manifest
from firmware_sim.bundle.target import A_CLASS, Target
from firmware_sim.errors import BundleError
from firmware_sim.normalisation import Normalisation
from profiles import load_profile
from tests.harness.manifests import a_manifest

CONTENT = {"model.tflite": b"model", "shared.onnx": b"slice", "infer.tflite": b"infer"}
Table = dict[str, Any]


def described(content: dict[str, bytes] = CONTENT) -> Table:
    entries = {
        name: FileEntry(len(data), hashlib.sha256(data).hexdigest())
        for name, data in content.items()
    }
    measured = Measured("tflite-runtime", "2.14.0", 1, 90 * 2**20, 30 * 2**20, 0.25)
    return a_manifest(files=entries, measured=measured).to_json()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest bundle that can be opened."""
    for name, data in CONTENT.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / MANIFEST).write_text(json.dumps(described()))
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_bundle(folder)
    return str(caught.value)


def test_a_whole_bundle_is_opened(folder: Path) -> None:
    bundle = open_bundle(folder)
    assert bundle.manifest == parse(described(), folder / MANIFEST)
    assert (bundle.model, bundle.slice, bundle.infer) == tuple(folder / name for name in CONTENT)
    assert bundle.model_digest == hashlib.sha256(b"model").hexdigest()
    assert bundle.measured.peak_bytes == 90 * 2**20


def test_a_large_file_is_checked_in_pieces(folder: Path) -> None:
    content = CONTENT | {"model.tflite": bytes(3 * 2**20) + b"!"}
    (folder / "model.tflite").write_bytes(content["model.tflite"])
    (folder / MANIFEST).write_text(json.dumps(described(content)))
    assert open_bundle(folder).manifest.files["model.tflite"].bytes == 3 * 2**20 + 1


def test_no_folder_and_no_manifest_are_refused(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    assert refusal(folder) == f"{folder} is not a bundle: it has no manifest.json."
    (folder / MANIFEST).mkdir()
    assert refusal(folder).startswith(f"{folder / 'manifest.json'} cannot be read as JSON (")
    missing = folder / "none"
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
        (b'{"format": 1, "files": {}, "branch": {}, "versions": {}, "runtime": ""}',
         "lacks batch_size, calibration, fingerprint, micro_batch_size, profile, signatures, "
         "tensors."),
        (b" " * (4 * 2**20 + 1), "is larger than any manifest."),
    ],
    ids=["empty", "cut off", "not UTF-8", "deep", "a list", "no format", "format 2", "format '1'",
         "no files", "list of files", "parts missing", "huge"],
)  # fmt: skip
def test_a_bad_manifest_is_refused(folder: Path, manifest: bytes, problem: str) -> None:
    file = folder / MANIFEST
    file.write_bytes(manifest)
    assert refusal(folder).startswith(f"{file} {problem}")


def test_a_refusal_repeats_no_more_than_a_few_characters(folder: Path) -> None:
    file = folder / MANIFEST
    file.write_text(json.dumps({"format": "1" * 5000}), encoding="utf-8")
    said = refusal(folder).removeprefix(f"{file} ")
    assert said.startswith("has format '11") and said.endswith("; this version reads 1.")
    assert len(said) < 100


def change(*keys: str | int, to: Any) -> Callable[[Table], None]:
    def act(table: Table) -> None:
        inner: Any = table
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to

    return act


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (change("batch_size", to="32"), "must have a whole number, 0 or more as batch_size."),
        (change("batch_size", to=True), "must have a whole number, 0 or more as batch_size."),
        (change("micro_batch_size", to=-1),
         "must have a whole number, 0 or more as micro_batch_size."),
        (change("fingerprint", to=None), "must have a text as fingerprint."),
        (change("branch", to=[]), "must have an object as branch."),
        (change("branch", to={}), "lacks branch.input."),
        (change("branch", "input", to={"shape": [8], "dtype": "uint8"}),
         "lacks branch.input.scale."),
        (change("branch", "input", "shape", to=[8, "8"]),
         "must have a list of whole numbers as branch.input.shape."),
        (change("tensors", to={}), "must have a list of objects as tensors."),
        (change("tensors", 1, "shared", to=1), "must have true or false as tensors[1].shared."),
        (lambda table: table["tensors"][0].pop("fingerprint"), "lacks tensors[0].fingerprint."),
        (change("signatures", "train", to={}), "lacks signatures.train.inputs."),
        (change("signatures", "train", "inputs", "x", to=["uint9", [1]]),
         "must have the type and shape of an array as signatures.train.inputs.x."),
        (change("signatures", "train", "inputs", "x", to=["uint8", 1]),
         "must have the type and shape of an array as signatures.train.inputs.x."),
        (change("measured", "step_seconds", to="fast"),
         "must have a number as measured.step_seconds."),
        (change("estimated", to={"peak_bytes": 1.5}),
         "must have a whole number, 0 or more as estimated.peak_bytes."),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(
    folder: Path, damage: Callable[[Table], None], problem: str
) -> None:
    table = described()
    damage(table)
    (folder / MANIFEST).write_text(json.dumps(table))
    assert refusal(folder) == f"{folder / MANIFEST} {problem}"


def test_a_bundle_of_before_there_were_pauses_has_none(folder: Path) -> None:
    table = described()
    table["profile"]["quiet_hours"] = "22:00-06:00"
    for key in ("duty_cycle", "pause_file", "battery_limit_percent"):
        del table["profile"][key]
    (folder / MANIFEST).write_text(json.dumps(table))
    weak = load_profile("weak")
    assert open_bundle(folder).manifest.profile == replace(weak, quiet_hours="22:00-06:00")


def test_a_profile_is_checked_as_strictly_as_its_own_file(folder: Path) -> None:
    table = described()
    table["profile"]["threads"] = None
    (folder / MANIFEST).write_text(json.dumps(table))
    assert refusal(folder) == (
        f"in the profile in {folder / MANIFEST}, key 'threads' must be an integer from 1 to 64, "
        "but it is null."
    )
    del table["profile"]["threads"]
    (folder / MANIFEST).write_text(json.dumps(table))
    assert refusal(folder) == (
        f"the profile in {folder / MANIFEST} lacks threads; export the bundle again."
    )


@pytest.mark.parametrize("name", CONTENT)
def test_every_file_must_be_described_and_whole(folder: Path, name: str) -> None:
    file = folder / name
    file.write_bytes(CONTENT[name][:-1])
    assert refusal(folder) == f"{file} is damaged: it has 4 bytes, and its manifest says 5."
    file.write_bytes(CONTENT[name][:-1] + b"?")
    assert refusal(folder) == f"{file} is damaged: its digest is not the manifest's."
    file.unlink()
    assert refusal(folder) == f"{file} cannot be read (No such file or directory)."

    file.write_bytes(CONTENT[name])
    for entry in (None, 5, {"bytes": 5}, {"bytes": "5", "sha256": ""}):
        manifest = described()
        manifest["files"][name] = entry
        (folder / MANIFEST).write_text(json.dumps(manifest))
        assert refusal(folder) == f"the manifest beside {file} does not describe it."
    del manifest["files"][name]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert refusal(folder) == f"the manifest beside {file} does not describe it."


def test_an_exported_manifest_is_written_back_byte_for_byte(
    digits_bundle: Bundle, tmp_path: Path
) -> None:
    write_manifest(tmp_path, digits_bundle.manifest)
    written = (tmp_path / MANIFEST).read_bytes()
    assert written == (digits_bundle.folder / MANIFEST).read_bytes()


def test_a_bundle_of_an_earlier_version_is_opened(own_bundle: Bundle) -> None:
    file = own_bundle.folder / MANIFEST
    table = json.loads(file.read_text())
    for key in ("tuning", "estimated", "measured"):
        del table[key]
    file.write_text(json.dumps(table | {"added_later": 1}))
    older = open_bundle(own_bundle.folder)
    assert older.manifest == replace(own_bundle.manifest, tuning={}, estimated={}, measured=None)
    sentence = f"the manifest of {own_bundle.folder} does not say how much memory training takes."
    with pytest.raises(BundleError) as caught:
        _ = older.measured
    assert str(caught.value) == sentence


def test_a_bundle_that_does_not_train_is_one_sentence(digits_bundle: Bundle) -> None:
    silent = replace(digits_bundle, manifest=replace(digits_bundle.manifest, signatures={}))
    with pytest.raises(BundleError) as caught:
        _ = silent.training_inputs
    sentence = f"the manifest of {silent.folder} does not say what its training takes."
    assert str(caught.value) == sentence


def test_the_slice_is_the_shared_tensors() -> None:
    shared = a_manifest().shared
    assert [(t.name, t.shape, t.dtype, t.fingerprint) for t in shared.tensors] == [
        ("stem/kernel", (2,), "float32", "a")
    ]


@pytest.mark.parametrize("target", [Target("class", (), 7), Target("numbers", (2,)),
    Target("input", (8, 8, 1), scale=0.0625), Target("class_per_position", (4, 3), 5)])  # fmt: skip
def test_the_target_is_read_as_it_was_written(folder: Path, target: Target) -> None:
    """The scale is that of the input, and is stated once."""
    table = described()
    table["branch"]["target"] = {
        "kind": target.kind, "shape": list(target.shape), "classes": target.classes,
    }  # fmt: skip
    found = parse(table, folder / MANIFEST)
    assert found.branch.target == replace(target, scale=0.0625)
    assert found.to_json()["branch"]["target"] == table["branch"]["target"]


def test_bundles_of_earlier_versions_tell_classes_apart_or_nothing(folder: Path) -> None:
    table = described()
    del table["branch"]["target"]
    assert parse(table, folder / MANIFEST).branch.target == A_CLASS
    for y in (["float32", [32, 1]], ["int32", [32, 4]]):
        table["signatures"]["train"]["inputs"]["y"] = y
        assert parse(table, folder / MANIFEST).branch.target is None
    del table["signatures"]["train"]["inputs"]["y"]
    found = parse(table, folder / MANIFEST)
    assert found.branch.target is None
    assert "target" not in found.to_json()["branch"]


def test_a_kind_of_target_that_is_not_known_is_refused(folder: Path) -> None:
    table = described()
    table["branch"]["target"]["kind"] = "melody"
    (folder / MANIFEST).write_text(json.dumps(table))
    assert refusal(folder) == (
        f"{folder / MANIFEST} must have one of class, numbers, input, class_per_position as "
        "branch.target.kind; a newer version may know it."
    )


def test_a_normalisation_is_read_again(folder: Path) -> None:
    manifest = a_manifest(normalisation=Normalisation((0.5,), (2.0,)))
    table = json.loads(json.dumps(manifest.to_json()))
    assert table["normalisation"] == {"mean": [0.5], "deviation": [2.0]}
    assert parse(table, folder / MANIFEST).normalisation == manifest.normalisation


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [
        ([0.5], [0.0]),
        ([0.5], []),
        ([1, 2], [1, 2]),
        ([1], [float("inf")]),
        ("a", [1]),
        ([True], [1]),
    ],
)
def test_a_wrong_normalisation_is_refused(folder: Path, mean: Any, deviation: Any) -> None:
    table = a_manifest().to_json() | {"normalisation": {"mean": mean, "deviation": deviation}}
    with pytest.raises(BundleError, match="must have a"):
        parse(table, folder / MANIFEST)
