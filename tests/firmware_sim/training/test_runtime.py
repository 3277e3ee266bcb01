"""A loaded model: what it takes is checked, and both runtimes compute the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import RuntimeUnavailable, WrongInput
from firmware_sim.measure import measure
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.training import runtime
from firmware_sim.training.runtime import Model, choose_runtime, installed_runtimes

BATCH: dict[str, Any] = {"x": np.zeros((32, 8, 8, 1), np.uint8), "y": np.zeros(32, np.int32)}


@pytest.fixture(scope="module")
def model(digits_bundle: Bundle) -> Model:
    return Model(digits_bundle.model, runtime="ai-edge-litert")


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(WrongInput) as caught:
        call()
    return str(caught.value)


# --- signatures ----------------------------------------------------------------------------------


def test_signatures_and_what_they_take(model: Model, digits_bundle: Bundle) -> None:
    signatures = digits_bundle.manifest.signatures
    assert sorted(model.signatures) == sorted(signatures)
    for name, inputs in signatures.items():
        assert model.inputs(name) == inputs


def test_an_unknown_signature_is_refused(model: Model) -> None:
    sentence = f"the model has no signature 'fly'; it has {', '.join(model.signatures)}."
    assert refusal(lambda: model.call("fly")) == sentence
    assert refusal(lambda: model.inputs("fly")) == sentence


def test_wrong_names_are_refused(model: Model) -> None:
    assert refusal(lambda: model.call("infer")) == "infer takes x; missing: x, unknown: none."
    assert refusal(lambda: model.call("train", images=BATCH["x"], labels=BATCH["y"])) == (
        "train takes x, y; missing: x, y, unknown: images, labels."
    )
    assert refusal(lambda: model.call("get_shared", x=BATCH["x"])) == (
        "get_shared takes nothing; missing: none, unknown: x."
    )


def test_wrong_shapes_and_types_are_refused(model: Model) -> None:
    wrong = {
        "train takes x as uint8[32, 8, 8, 1], not uint8[31, 8, 8, 1].": {"x": BATCH["x"][:31]},
        "train takes x as uint8[32, 8, 8, 1], not uint8[32, 64].": {
            "x": BATCH["x"].reshape(32, 64)
        },
        "train takes x as uint8[32, 8, 8, 1], not float32[32, 8, 8, 1].": {
            "x": BATCH["x"].astype(np.float32)
        },
        "train takes y as int32[32], not int64[32].": {"y": BATCH["y"].astype(np.int64)},
        "train takes y as int32[32], not int32[].": {"y": np.array(1, np.int32)},
    }
    before = model.call("get_state")
    for sentence, change in wrong.items():
        assert refusal(partial(model.call, "train", **BATCH | change)) == sentence
    after = model.call("get_state")
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_variables_live_in_the_object(digits_bundle: Bundle) -> None:
    one, other = (Model(digits_bundle.model, runtime="ai-edge-litert") for _ in range(2))
    one.call("train", **BATCH)
    assert one.call("get_state")["optimizer/step"] == 1.0
    assert other.call("get_state")["optimizer/step"] == 0.0


# --- choosing a runtime --------------------------------------------------------------------------


def test_both_runtimes_are_installed_and_the_maintained_one_is_preferred() -> None:
    assert installed_runtimes() == ("ai-edge-litert", "tflite-runtime")
    assert choose_runtime() == "ai-edge-litert"
    assert choose_runtime("tflite-runtime") == "tflite-runtime"


@pytest.mark.parametrize(
    ("installed", "wanted", "sentence"),
    [
        ((), None, "no TFLite runtime is installed; install ai-edge-litert or tflite-runtime."),
        ((), "tflite-runtime", "the runtime tflite-runtime is not installed; here there is none."),
        (("tflite-runtime",), "ai-edge-litert",
         "the runtime ai-edge-litert is not installed; here there is tflite-runtime."),
        (("ai-edge-litert", "tflite-runtime"), "litert",
         "the runtime litert is not installed; here there is ai-edge-litert, tflite-runtime."),
    ],
)  # fmt: skip
def test_a_runtime_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], wanted: str | None, sentence: str
) -> None:
    monkeypatch.setattr(runtime, "installed_runtimes", lambda: installed)
    with pytest.raises(RuntimeUnavailable) as caught:
        choose_runtime(wanted)
    assert str(caught.value) == sentence


def test_the_second_runtime_is_taken_where_the_first_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "installed_runtimes", lambda: ("tflite-runtime",))
    assert choose_runtime() == "tflite-runtime"


# --- measuring -----------------------------------------------------------------------------------


def measured_in_a_process(model: Path, runtime: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "firmware_sim.measure", str(model), "--runtime", runtime]
    ran = subprocess.run([*command, "--steps", "3"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return report


def test_both_runtimes_answer_and_train_the_same(digits_bundle: Bundle) -> None:
    reports = {name: measured_in_a_process(digits_bundle.model, name) for name in runtime.RUNTIMES}
    one, other = reports.values()
    np.testing.assert_allclose(one["answer"], other["answer"], rtol=1e-4)
    np.testing.assert_allclose(one["losses"], other["losses"], rtol=1e-4)
    for name, report in reports.items():
        assert report["runtime"] == name
        assert len(report["losses"]) == 1 + len(report["step_seconds"]) == 4
        assert report["losses"][-1] < report["losses"][0]
        assert sum(report["answer"]) == pytest.approx(1.0, abs=1e-5)
        assert 10 * 2**20 < report["start_bytes"] < report["peak_bytes"] < 128 * 2**20


def test_measuring_is_repeatable(digits_bundle: Bundle) -> None:
    one, other = (
        measure(digits_bundle.model, runtime="ai-edge-litert", threads=1, steps=2) for _ in range(2)
    )
    assert one["losses"] == other["losses"]
    assert one["answer"] == other["answer"]


def test_the_peak_is_of_this_process() -> None:
    before = peak_memory_bytes()
    block = np.ones(64 * 2**20, np.uint8)
    assert peak_memory_bytes() >= before
    assert block.nbytes < peak_memory_bytes()
