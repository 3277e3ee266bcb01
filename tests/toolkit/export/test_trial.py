"""A converted branch is tried out in every runtime before it is believed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from firmware_sim.bundle.reader import Bundle
from profiles import Profile, load_profile
from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.errors import ExportError
from toolkit.export import trial
from toolkit.export.trial import try_out

WEAK = load_profile("weak")


def digits(seed: int) -> Branch:
    keras.utils.set_random_seed(seed)
    return zoo.build("digits", "lightweight")


def test_a_model_that_answers_otherwise_than_keras_is_refused(digits_bundle: Bundle) -> None:
    with pytest.raises(ExportError) as caught:
        try_out(digits(seed=1), WEAK, digits_bundle.model)
    assert str(caught.value) == (
        "in ai-edge-litert the converted branch does not answer what Keras does."
    )


def test_a_model_that_a_runtime_cannot_load_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"\0" * 64)
    with pytest.raises(ExportError, match=r"^the branch does not train in ai-edge-litert: \S"):
        try_out(digits(seed=0), WEAK, tmp_path / "model.tflite")


def test_what_is_measured_is_the_profiles_runtime(
    digits_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    measure = trial._measure

    def watched(model: Path, runtime: str, profile: Profile) -> dict[str, Any]:
        asked.append((runtime, profile.threads))
        return measure(model, runtime, profile)

    monkeypatch.setattr(trial, "_measure", watched)
    profile = replace(WEAK, runtime="tflite-runtime", threads=2)
    measured = try_out(digits(seed=0), profile, digits_bundle.model)
    assert asked == [("ai-edge-litert", 2), ("tflite-runtime", 2)]
    assert (measured.runtime, measured.threads) == ("tflite-runtime", 2)
    assert measured.runtime_version.startswith("2.14.")
