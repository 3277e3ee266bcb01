"""`toolkit bench caps`, on one small branch, and its tables."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from broker.protocol.slice import SharedTensor, Slice
from firmware_sim.bundle.reader import Bundle
from profiles import Profile
from toolkit.bench import caps, zoo_bundles
from toolkit.bench.caps import MIB, message_bytes, run_bench, tables
from toolkit.branch.branch import Branch
from toolkit.errors import ToolkitError


def shown(report: dict[str, Any]) -> str:
    stream = io.StringIO()
    for part in tables(report):
        Console(width=200, file=stream).print(part)
    return stream.getvalue()


def test_a_branch_runs_under_its_cap_or_is_refused(
    own_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_branch(branch: Branch, task: str, profile: Profile, folder: Path) -> Bundle:
        if profile.name != "weak":
            return zoo_bundles.export_branch(branch, task, profile, folder)
        assert (branch.name, task) == ("digits-lightweight", "digits")
        return own_bundle  # which was exported so

    monkeypatch.setattr(caps, "export_branch", export_branch)
    tiny = 'extends = "weak"\nmemory_cap_mib = 30\nbatch_size = 1\n'  # no micro-batches are tried
    (tmp_path / "tiny.toml").write_text(tiny)
    said: list[str] = []
    report = run_bench(
        tmp_path,
        profiles=["weak", str(tmp_path / "tiny.toml")],
        names=["digits-lightweight-share"],
        rounds=2,
        steps=5,
        progress=said.append,
    )
    kept, refused = report["rows"]
    assert (kept["profile"], kept["branch"]) == ("weak", "digits-lightweight-share-first")
    for size in (kept["estimated"], kept["measured"], kept["device"]):
        assert 30 * MIB < size <= kept["cap"] == 128 * MIB
    assert abs(kept["estimated"] - kept["measured"]) < 0.15 * kept["measured"]
    assert abs(kept["device"] - kept["measured"]) < 0.1 * kept["measured"]
    assert kept["micro_batch"] == 32
    assert 0 < kept["accuracy"] < 1
    assert kept["homogeneous"] == 4 * 3_930
    assert refused["refused"].startswith("training takes ")
    text = shown(report)
    assert "refused: digits-lightweight-share-first for tiny: training takes " in text
    assert "weak    │ digits-lightweight-share-first │ 128" in text


def test_bytes_are_those_of_real_messages() -> None:
    shared = Slice.of([SharedTensor.of("kernel", (100, 100), "float32", "")])
    sizes = {encoding: message_bytes(shared, encoding)[0] for encoding in ("float32", "int8")}
    header = sizes["float32"] - 40_000
    assert 300 < header < 700
    assert sizes["int8"] == pytest.approx(10_000 + header, abs=600)
    assert message_bytes(shared, "int8")[1] == pytest.approx(40_000, abs=600)
    assert np.prod(shared.tensors[0].shape) == 10_000


def test_an_unknown_branch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"^no zoo branch is called like resnet\.$"):
        run_bench(tmp_path, profiles=["weak"], names=["resnet"], rounds=1, steps=1, progress=print)
