"""The fleet's benchmark in short: its numbers are of the right things, and its sums are right."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from broker.aggregator.slice_file import read_slice
from toolkit.bench.fleet import SLICES, run_bench, tables
from toolkit.bench.simulated_fleet import write_slice


def shown(report: dict[str, Any]) -> str:
    stream = io.StringIO()
    for part in tables(report):
        Console(width=160, file=stream).print(part)
    return stream.getvalue()


def test_a_short_run(tmp_path: Path) -> None:
    said: list[str] = []
    report = run_bench(tmp_path, repetitions=1, devices=3, rounds=20, progress=said.append)
    assert report["bytes"] == {"Atari stem": 4 * 41_056, "whole complex branch": 4 * 1_687_206}
    for (way,) in report["paths"].values():
        assert all(seconds > 0 for seconds in way.values())
    assert (
        report["paths"]["Atari stem"][0]["add"] < report["paths"]["whole complex branch"][0]["add"]
    )
    assert (report["round"]["devices"], report["memory"]["rounds"]) == (3, 20)
    assert report["round"]["peak_bytes"] > 10 * 2**20
    assert "20 rounds of 4 devices" in shown(report)
    assert said[0] == "Atari stem: repetition 1 of 1"


def test_ratios_are_taken_within_a_repetition() -> None:
    runs = [
        {"encode": 1.0, "check": 1.0, "merge": 1.0, "add": 1.0, "transport": 6.0},
        {"encode": 2.0, "check": 2.0, "merge": 2.0, "add": 2.0, "transport": 12.0},
        {"encode": 9.0, "check": 9.0, "merge": 9.0, "add": 1.0, "transport": 27.0},
    ]
    rates = {
        "devices": 4, "rounds": 10, "seconds": 2.0, "round_seconds": 0.5, "merge_seconds": 0.1,
        "resident_bytes": [2**20, 2**21], "peak_bytes": 2**22,
    }  # fmt: skip
    report = {"bytes": {"slice": 10**6}, "paths": {"slice": runs}, "round": rates, "memory": rates}
    text = shown(report)
    row = next(line for line in text.splitlines() if line.startswith("│ slice"))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    # Medians: encode 2 s; 6 s in all are 0.17 updates/s; ratios 3, 3, 27 and 1/2, 1/2, 1.
    assert cells == ["slice", "1.00 MB", *["2000.000 ms"] * 3, "0", "3.0", "50%"]
    assert "4 simulated devices in one round: 0.50 s, 8 updates/s" in text
    assert "1.0 MiB after a tenth of them and 2.0 MiB at the end" in text


@pytest.mark.parametrize("name", SLICES)
def test_the_simulated_slice_holds_those_tensors(name: str, tmp_path: Path) -> None:
    write_slice(tmp_path / "shared.onnx", SLICES[name])
    shared, start = read_slice(tmp_path / "shared.onnx")
    assert {t.name: t.shape for t in shared.tensors} == SLICES[name]
    assert all(not np.any(value) for value in start.values())
