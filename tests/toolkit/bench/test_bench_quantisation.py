"""The benchmark of quantised updates in short: real fleets, and sums that are right."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from firmware_sim.bundle.reader import Bundle
from profiles import Profile
from tests.harness.quick_bundles import quick_bundle
from toolkit.bench import quantisation
from toolkit.bench.quantisation import run_bench, tables
from toolkit.branch.branch import Branch, with_learning_rate
from toolkit.errors import ToolkitError


def shown(report: dict[str, Any]) -> str:
    stream = io.StringIO()
    for part in tables(report):
        Console(width=160, file=stream).print(part)
    return stream.getvalue()


def test_the_command_runs_every_encoding(
    toolkit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_branch(
        branch: Branch, task: str, profile: Profile, folder: Path, *, learning_rate: float
    ) -> Bundle:
        learning = with_learning_rate(branch, learning_rate)
        return quick_bundle(learning, profile.name, folder, batch=profile.batch_size)

    monkeypatch.setattr(quantisation, "export_branch", export_branch)  # nothing is tried out
    out = tmp_path / "new" / "quantisation.json"
    short = ("--seeds", "1", "--rounds", "2", "--steps", "10", "--learning-rate", "0.003")
    ran = toolkit("bench", "quantisation", "--out", out, *short, "--fleets", "2")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(out.read_text())
    assert (report["task"], report["rounds"], report["steps"]) == ("digits", 2, 10)
    sent = {e: found["weak"][0]["update_bytes"] for e, found in report["results"].items()}
    assert sorted(sent, key=lambda encoding: -sent[encoding]) == [
        "float32", "float16", "int8", "int4",
    ]  # fmt: skip
    full, coded = report["results"]["float32"], report["results"]["int8"]
    for device in ("weak", "powerful"):
        (one,), (other,) = full[device], coded[device]
        assert one["accuracy"] > 0.2  # of ten classes
        assert other["accuracy"] == pytest.approx(one["accuracy"], abs=0.1)
        assert 0.25 < other["update_bytes"] / one["update_bytes"] <= 0.26
    text = shown(report)
    assert "digits: mean over 2 devices and 1 seeds, after 2 rounds" in text
    assert "learning rate 0.003 instead of the branch's own" in text.replace("\n", " ")


def test_differences_are_taken_within_a_seed() -> None:
    def device(accuracies: list[float], sent: float) -> list[dict[str, float]]:
        return [{"accuracy": accuracy, "update_bytes": sent} for accuracy in accuracies]

    report = {
        "task": "digits",
        "seeds": [0, 1],
        "rounds": 5,
        "steps": 7,
        "learning_rate": None,
        "results": {
            "float32": {"weak": device([0.5, 0.9], 3000), "powerful": device([0.7, 0.9], 5000)},
            "int8": {"weak": device([0.5, 0.87], 800), "powerful": device([0.68, 0.87], 1200)},
        },
    }
    row = next(line for line in shown(report).splitlines() if line.startswith("│ int8"))
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    # By seed: 60 → 59 and 90 → 87 points; ± is 2 / √2 / √2.
    assert cells == ["int8", "73.00 %", "-2.00 points", "1.00", "2.0 kB", "25.0%"]


@pytest.mark.parametrize("task", ["cifar10", "atari"])
def test_a_task_without_data_is_one_sentence(task: str, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        run_bench(
            tmp_path, task=task, data=None, encodings=[], seeds=[0], rounds=1, steps=1,
            progress=print,
        )  # fmt: skip
    assert str(caught.value) == (
        "the tasks are digits and cifar10, and cifar10 needs the folder with its batches."
    )
