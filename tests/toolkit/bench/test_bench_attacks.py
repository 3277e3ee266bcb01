"""Lying devices against a real fleet's arithmetic, in short: real learners and coordinators."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from broker.merging.bounds import UNBOUNDED
from broker.merging.merge import MergeRule
from toolkit.bench.attacks import fleet
from toolkit.bench.attacks.attackers import ATTACKS, Sent
from toolkit.bench.attacks.fleet import Case, Trainer
from toolkit.bench.attacks.run import CLIP_NORM, run_bench, tables
from toolkit.conversion.convert import convert_module
from toolkit.errors import ToolkitError
from toolkit.training.module import TrainingModule

CONVERTED: dict[str, bytes] = {}  # by how the branch learns


@pytest.fixture(autouse=True)
def converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleets train one and the same branch, whose conversion takes longest."""

    def convert(module: TrainingModule) -> bytes:
        how = f"{module.branch.learning} {module.batch}"
        if how not in CONVERTED:
            CONVERTED[how] = convert_module(module)
        return CONVERTED[how]

    monkeypatch.setattr(fleet, "convert_module", convert)


def shown(report: dict[str, Any]) -> str:
    stream = io.StringIO()
    for part in tables(report):
        Console(width=200, file=stream).print(part)
    return stream.getvalue()


def forged(attack: str, *, others: int = 4) -> tuple[Sent, Sent]:
    """An honest update of a fleet, and what an attacker sends in its place."""
    rng = np.random.default_rng(0)
    values = rng.normal(1, 0.1, size=(1 + others, 1000)).astype(np.float32)
    own, *known = [Sent({"w": value}, 100) for value in values]
    return own, ATTACKS[attack].forge(own, known, rng)


def test_attackers_send_what_they_are_called() -> None:
    own, sent = forged("sign flip")
    np.testing.assert_allclose(sent.tensors["w"], -10 * own.tensors["w"], rtol=1e-6)
    own, sent = forged("sample lie")
    np.testing.assert_allclose(sent.tensors["w"], -10 * own.tensors["w"], rtol=1e-6)
    assert (own.samples, sent.samples) == (100, 10**9)
    own, sent = forged("within the bounds")
    np.testing.assert_allclose(sent.tensors["w"], -2 / 3 * own.tensors["w"], rtol=1e-6)
    assert (own.samples, sent.samples) == (100, 300)
    own, sent = forged("noise")
    size = np.linalg.norm(sent.tensors["w"]) / np.linalg.norm(own.tensors["w"])
    assert size == pytest.approx(10, rel=0.1)
    assert abs(sent.tensors["w"].mean()) < 1
    _, sent = forged("huge values")
    assert set(np.unique(sent.tensors["w"])) == {-1e6, 1e6}
    _, sent = forged("a little is enough", others=400)
    np.testing.assert_allclose(sent.tensors["w"].mean(), 1 - 1.5 * 0.1, atol=0.005)
    assert ATTACKS["label flip"].flips_labels
    assert ATTACKS["sybils"].identities == 3


def test_a_device_that_lies_about_its_samples_no_longer_takes_the_round(tmp_path: Path) -> None:
    """Before, with --clip-norm alone, one of ten devices owned θ_shared after a few rounds."""
    trainer = Trainer(tmp_path, rounds=8, steps=8)
    clip_norm = MergeRule("samples", bounds=replace(UNBOUNDED, clip_norm=CLIP_NORM))
    honest = trainer.accuracy(Case(None, 0, MergeRule("samples")))
    assert honest > 0.9
    assert trainer.accuracy(Case("sample lie", 1, clip_norm)) < 0.3
    assert trainer.accuracy(Case("sample lie", 1, MergeRule("samples"))) > honest - 0.06
    # And the fleet in which nobody lies is the undefended one, to the last image.
    assert trainer.accuracy(Case(None, 0, MergeRule("samples", bounds=UNBOUNDED))) == honest


def test_the_command_goes_on_where_it_was(toolkit: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "new" / "attacks.json"
    short = ["--attack", "huge values", "--defence", "median", "--liars", "1"]
    short += ["--seeds", "1", "--rounds", "3", "--steps", "6"]
    ran = toolkit("bench", "attacks", "--out", out, *short)
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(out.read_text())
    lost = {(row["attack"], row["split"]): row["lost"] for row in report["rows"]}
    assert lost["nobody lies", "equal"]["off"]["mean"] == 0
    assert lost["nobody lies", "equal"]["default"]["mean"] == 0
    assert set(lost["nobody lies", "by class"]) == {"off", "default"}
    huge = lost["huge values", "equal"]
    assert huge["off"]["mean"] > 20
    assert abs(huge["default"]["mean"]) < 10
    assert abs(huge["median"]["mean"]) < 10
    # A line that was cut off is run again, and nothing else is.
    results = out.with_suffix(".jsonl")
    lines = results.read_text()
    results.write_text(lines.replace("nobody", "NOBODY", 1)[:-5])
    assert toolkit("bench", "attacks", "--out", out, *short).code == 0
    again = results.read_text().splitlines()
    assert len(again) == len(lines.splitlines()) + 1, "the renamed case and the last one"
    assert json.loads(out.read_text()) == report
    other = toolkit("bench", "attacks", "--out", out, *short[:-1], "7")
    assert other.code == 1
    assert "holds results of other settings; give another --out, or remove it." in other.err


def test_accuracy_lost_is_taken_within_a_seed() -> None:
    spread = {"mean": 1.25, "standard_error": 0.5}
    report = {
        "devices": 10,
        "rounds": 2,
        "steps": 3,
        "learning_rate": 0.01,
        "clip_norm": 2.5,
        "seeds": [0, 1],
        "rows": [
            {
                "attack": "nobody lies",
                "liars": 0,
                "split": "unequal",
                "honest_accuracy": 0.975,
                "lost": {"off": {"mean": 0.0}},
            },
            {
                "attack": "noise",
                "liars": 2,
                "split": "equal",
                "honest_accuracy": 0.975,
                "lost": {"off": spread, "default": {"mean": -0.04}},
            },
        ],
    }
    text = shown(report)
    assert "nobody lies, data unequal │ 0 of 10 │ 0.0" in text
    assert "│ noise                     │ 2 of 10 │ 1.2 ± 0.5 │ -0.0" in text
    assert "(unequal 97.5%)" in text


@pytest.mark.parametrize(("attacks", "defences"), [(["x"], ["median"]), (["noise"], ["x"])])
def test_what_there_is_not_is_refused(
    attacks: list[str], defences: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ToolkitError, match=r"there is no .* 'x'; there are .*, "):
        run_bench(
            tmp_path,
            tmp_path / "r.jsonl",
            attacks=attacks,
            defences=defences,
            liars=[1],
            seeds=[0],
            rounds=1,
            steps=1,
            learning_rate=0.01,
            progress=lambda text: None,
        )
