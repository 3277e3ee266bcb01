"""How the benchmark sums up its runs; the runs themselves are a command, not a test."""

import pytest
from rich.console import Console

from toolkit.bench.step.benchmark import _summary, run_bench, tables
from toolkit.bench.zoo_bundles import chosen_entries
from toolkit.errors import ToolkitError

ENTRY = ("digits", "lightweight", "share-first")
RUNS = {
    "TensorFlow": [{"step_seconds": [0.1, 0.1, 0.9], "peak_bytes": 600 * 2**20}] * 2,
    "Flex": [
        {"step_seconds": [0.2], "peak_bytes": 500 * 2**20},
        {"step_seconds": [0.4], "peak_bytes": 500 * 2**20},
    ],
    "ai-edge-litert": [
        {"step_seconds": [0.1], "peak_bytes": 50 * 2**20},
        {"step_seconds": [0.1], "peak_bytes": 50 * 2**20},
    ],
}


def test_ratios_are_taken_within_a_round() -> None:
    found = _summary(ENTRY, RUNS)["contestants"]["ai-edge-litert"]
    assert found["time_to_flex"] == pytest.approx((0.1 / 0.2 + 0.1 / 0.4) / 2)
    assert found["time_to_tensorflow"] == pytest.approx(1.0)  # the median, not the outlier
    assert found["peak_to_flex"] == pytest.approx(0.1)


def test_without_flex_there_is_no_ratio_and_a_sentence_says_why() -> None:
    runs = {name: found for name, found in RUNS.items() if name != "Flex"}
    summary = _summary(ENTRY, runs)
    assert summary["contestants"]["ai-edge-litert"]["time_to_flex"] is None
    report = {"batch_size": 32, "threads": 1, "matmul_gflops": 100.0, "flex": None}
    console = Console(record=True, width=100, quiet=False, file=None)
    with console.capture() as printed:
        for part in tables({**report, "branches": [summary]}):
            console.print(part)
    assert "100.0 ms" in printed.get() and "no Flex" in printed.get()


def test_branches_are_chosen_by_parts_of_their_names() -> None:
    tasks = [task for task, _, _ in chosen_entries(["cifar10-light", "atari"])]
    assert {"cifar10", "atari"} == set(tasks) and len(chosen_entries([])) > len(tasks)
    assert chosen_entries(["digits-complex-cas"]) == [("digits", "complex", "cascading")]
    with pytest.raises(ToolkitError, match=r"^no zoo branch is called like nothing\.$"):
        run_bench(
            names=["nothing"],
            steps=1,
            rounds=1,
            threads=1,
            flex_python=None,
            make_flex=False,
            torch_python=None,
            breakdown=False,
            progress=lambda text: None,
        )
