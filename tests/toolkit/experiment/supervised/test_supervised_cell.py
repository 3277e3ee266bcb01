"""Planning: every distinct cell once, and what cannot be planned is said in one sentence."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ANY, SETTINGS, Merging
from toolkit.experiment.supervised.cell import (
    TOPOLOGIES,
    SupervisedCell,
    SupervisedOptions,
    plan,
)

OPTIONS = SupervisedOptions(task="digits")


def planned(**changes: Any) -> list[SupervisedCell]:
    options: dict[str, Any] = {
        "settings": SETTINGS,
        "topologies": TOPOLOGIES,
        "weak_fractions": (0.05, 0.5),
        "seeds": range(3),
    }
    return plan(OPTIONS, **options | changes)


def test_what_no_topology_changes_is_planned_once() -> None:
    cells = planned()
    kinds = Counter((cell.setting, cell.topology, cell.devices) for cell in cells)
    both = ("weak", "powerful")
    assert kinds == dict.fromkeys(
        [
            ("isolated", ANY, ("weak",)),
            ("isolated", "share-first", ("powerful",)),
            ("isolated", "cascading", ("powerful",)),
            ("isolated", "two-loss", ("powerful",)),
            ("homogeneous", ANY, both),
            ("heterogeneous", "share-first", both),
            ("heterogeneous", "cascading", both),
            ("heterogeneous", "two-loss", both),
        ],
        2 * 3,  # fractions and seeds
    )
    assert len({cell.name for cell in cells}) == len(cells)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_the_ablation_adds_cascades_alone() -> None:
    more = set(planned(branch_dropout=(True, False))) - set(planned())
    assert {(cell.setting, cell.topology, cell.branch_dropout) for cell in more} == {
        ("heterogeneous", "cascading", False)
    }
    assert len(more) == 6


def test_branches_of_the_devices() -> None:
    found = {
        (cell.setting, cell.topology, device): (cell.branch(device), cell.zoo_topology())
        for cell in planned()
        for device in cell.devices
    }
    lightweight, everything = "lightweight", "cascading"  # what a cascade's lightweight shares
    assert found == {
        ("isolated", ANY, "weak"): (lightweight, everything),
        ("isolated", "share-first", "powerful"): ("complex", "share-first"),
        ("isolated", "cascading", "powerful"): ("complex", "cascading"),
        ("homogeneous", ANY, "weak"): (lightweight, everything),
        ("homogeneous", ANY, "powerful"): (lightweight, everything),
        ("heterogeneous", "share-first", "weak"): (lightweight, "share-first"),
        ("heterogeneous", "share-first", "powerful"): ("complex", "share-first"),
        ("heterogeneous", "cascading", "weak"): (lightweight, everything),
        ("heterogeneous", "cascading", "powerful"): ("complex", "cascading"),
        ("isolated", "two-loss", "powerful"): ("complex", "two-loss"),
        ("heterogeneous", "two-loss", "weak"): (lightweight, "two-loss"),
        ("heterogeneous", "two-loss", "powerful"): ("complex", "two-loss"),
    }


def test_a_cell_survives_json() -> None:
    for cell in planned(branch_dropout=(False,)):
        assert SupervisedCell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


def test_own_networks_and_how_the_fleet_merges_are_part_of_a_cell() -> None:
    options = SupervisedOptions(
        task="npz", rounds=7, weak_model="my.py:weak", strong_model="my.py:strong", merge="mean",
        optimizer="momentum:0.5",
    )  # fmt: skip
    chosen: dict[str, Any] = {"topologies": ["two-loss"], "weak_fractions": [0.2], "seeds": [0]}
    (cell,) = plan(options, settings=["heterogeneous"], **chosen)
    assert cell.merging == Merging("sync", "mean", 7, "momentum:0.5")
    assert SupervisedCell.from_json(json.loads(json.dumps(cell.to_json()))) == cell
    plain = replace(cell, options=replace(options, merge="samples", optimizer=None, rounds=9))
    assert plain.model_key("weak") == cell.model_key("weak")  # the network is the same
    other = replace(cell, options=replace(options, weak_model="my.py:smaller"))
    assert other.model_key("weak") != cell.model_key("weak")


def test_a_round_of_the_paper_is_63_mini_batches() -> None:
    assert OPTIONS.steps == 63  # 62 of 32 examples, and one for the other 16
    assert SupervisedOptions(task="digits", examples_per_round=64).steps == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": ["alone"]}, f"there is no mode 'alone'; there are {', '.join(SETTINGS)}."),
        ({"topologies": ["x"]}, "there is no topology 'x'; there are share-first, cascading, "
         "two-loss."),
        ({"weak_fractions": [1.0]}, "the weak device cannot hold 1 of the data: take more than 0 "
         "and less than 1, as 0.05 is."),
        ({"seeds": []}, "nothing is planned: give a mode, a topology, a fraction and a seed."),
    ],
)  # fmt: skip
def test_refused_plans(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        planned(**changes)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"engine": "torch"}, "there is no engine 'torch'; there are tf, tflite."),
        ({"learning_rate": 0.0}, "a learning rate of 0.0 is not above 0 and below 10."),
        ({"split": "dirichlet:-1"}, "there is no split 'dirichlet:-1'; there are iid and "
         "dirichlet:ALPHA, as dirichlet:0.5."),
        ({"split": "dirichlet"}, "there is no split 'dirichlet'; there are iid and "
         "dirichlet:ALPHA, as dirichlet:0.5."),
        ({"weak_model": "my.py:weak"}, "give both networks, the weak and the strong one, or "
         "neither."),
        ({"strong_model": "my.py:strong"}, "give both networks, the weak and the strong one, or "
         "neither."),
    ],
)  # fmt: skip
def test_refused_options(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        SupervisedOptions(task="digits", **changes)
    assert str(caught.value) == sentence
