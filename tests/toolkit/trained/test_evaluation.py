"""`toolkit evaluate`: the figures of every class, as numpy counts them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.tasks.digits import FILE as DIGITS
from firmware_sim.tasks.digits import read_digits
from firmware_sim.training.runtime import Model
from toolkit.trained.evaluation import confusion_of
from toolkit.trained.weights import read_weights

Toolkit = Callable[..., Any]


def test_every_class_has_its_figures(
    toolkit: Toolkit, digits_bundle: Bundle, trained: Path
) -> None:
    command = ("evaluate", digits_bundle.folder, "--state", trained, "--data", DIGITS)
    ran = toolkit(*command, "--json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    model, examples = Model(digits_bundle.model), read_digits()
    model.call("set_state", **read_weights(digits_bundle, trained).state)
    found = np.array([model.call("infer", x=x[None])["output"].argmax() for x in examples.x_test])
    wanted = examples.y_test
    assert report["accuracy"] == pytest.approx(np.mean(found == wanted))
    assert report["examples"] == len(wanted) == 360
    assert report["weights"] == "pi-7 after 2 rounds"
    for number, score in enumerate(report["classes"]):
        of, said = wanted == number, found == number
        assert score["examples"] == of.sum()
        assert score["recall"] == pytest.approx(np.mean(found[of] == number))
        assert score["precision"] == pytest.approx(np.mean(wanted[said] == number))
        harmonic = 2 / (1 / score["recall"] + 1 / score["precision"])
        assert score["f1"] == pytest.approx(harmonic)
        assert report["confusion"][number] == [int((of & (found == k)).sum()) for k in range(10)]

    lines = toolkit(*command).out.splitlines()
    assert lines[-1] == (
        f"accuracy {report['accuracy']:.2%} of 360 examples (ai-edge-litert), with the weights of "
        "pi-7 after 2 rounds"
    )
    assert sum("%" in line for line in lines) == 11

    before = json.loads(
        toolkit(*("evaluate", digits_bundle.folder, "--json", "--data", DIGITS)).out
    )
    assert before["weights"] == "the export"
    assert before["accuracy"] < 0.3


def test_classes_that_are_absent_or_unknown_are_counted() -> None:
    found, wanted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 3])
    counted = confusion_of(found, wanted, 3)
    assert counted.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert confusion_of(found, np.array([0, -1, 1, 2]), 3).sum() == 3
