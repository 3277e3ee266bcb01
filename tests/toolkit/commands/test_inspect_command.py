"""`toolkit inspect`: what is in a bundle, and one sentence for a damaged one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.reader import INFER, MANIFEST, MODEL, SLICE, Bundle

Toolkit = Callable[..., Any]
Listing = Callable[[Path], dict[str, bytes]]
TOOLKIT = Path(sys.executable).with_name("toolkit")
NOISE = ("oneDNN", "cuda", "CUDA", "WARNING", "I0000", "W0000", "E0000", "Traceback")


def really(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, as a user runs it."""
    loud = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return subprocess.run(
        [TOOLKIT, *arguments], cwd=cwd, env=loud, capture_output=True, text=True, timeout=180
    )


def test_inspect_as_json_is_the_manifest_and_the_operations(
    toolkit: Toolkit, digits_bundle: Bundle
) -> None:
    ran = toolkit("inspect", digits_bundle.folder, "--json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    operations = report.pop("operations")
    assert report == digits_bundle.manifest.to_json()
    assert report["signatures"].keys() <= operations[MODEL].keys()  # and one that initialises
    assert operations[MODEL]["get_shared"] == {"CALL_ONCE": 1, "READ_VARIABLE": 4, "VAR_HANDLE": 4}
    assert operations[INFER]["infer"]["CONV_2D"] == 2
    assert not any("Flex" in name for found in operations[MODEL].values() for name in found)


def test_inspect_for_people_shows_what_is_shared(toolkit: Toolkit, digits_bundle: Bundle) -> None:
    ran = toolkit("inspect", digits_bundle.folder)
    assert (ran.code, ran.err) == (0, "")
    assert "digits-lightweight for profile weak: 3,930 parameters (2,480 shared)" in ran.out
    rows = {line.split()[1]: line.split() for line in ran.out.splitlines() if "×" in line}
    assert rows["stem_conv1/kernel"][3:8:2] == ["3×3×1×16", "shared", "yes"]
    assert "shared" not in rows["light_output/kernel"]


def test_inspect_refuses_what_is_no_bundle(toolkit: Toolkit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("none", "file"):
        assert toolkit("inspect", tmp_path / name).refusal == (
            f"there is no bundle at {tmp_path / name}; `toolkit export` writes one."
        )
    assert toolkit("inspect", tmp_path).refusal == (
        f"{tmp_path} is not a bundle: it has no manifest.json."
    )


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["people", "json"])
def test_inspect_refuses_a_damaged_model(
    toolkit: Toolkit, own_bundle: Bundle, as_json: tuple[str, ...]
) -> None:
    whole = own_bundle.model.read_bytes()
    own_bundle.model.write_bytes(whole[:-100])
    assert toolkit("inspect", own_bundle.folder, *as_json).refusal == (
        f"{own_bundle.model} is damaged: it has {len(whole) - 100} bytes, "
        f"and its manifest says {len(whole)}."
    )
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    own_bundle.model.write_bytes(flipped)
    assert toolkit("inspect", own_bundle.folder, *as_json).refusal == (
        f"{own_bundle.model} is damaged: its digest is not the manifest's."
    )
    (own_bundle.folder / SLICE).unlink()
    own_bundle.model.write_bytes(whole)
    assert toolkit("inspect", own_bundle.folder, *as_json).refusal == (
        f"{own_bundle.slice} cannot be read (No such file or directory)."
    )


def test_inspect_refuses_a_damaged_manifest(toolkit: Toolkit, own_bundle: Bundle) -> None:
    file = own_bundle.folder / MANIFEST
    whole = file.read_text()
    file.write_text(whole[:-50])
    assert toolkit("inspect", own_bundle.folder).refusal.startswith(
        f"{file} cannot be read as JSON (Unterminated string "
    )
    file.write_text(json.dumps(own_bundle.manifest.to_json() | {"format": 2}))
    assert toolkit("inspect", own_bundle.folder).refusal == (
        f"{file} has format 2; this version reads 1."
    )
