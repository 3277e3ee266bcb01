"""Examples that full int8 quantisation takes its ranges from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firmware_sim.normalisation import Normalisation
from firmware_sim.playing.environments.atari import channels_last, vector_environment
from firmware_sim.playing.options import DqnOptions
from firmware_sim.tasks.arrays import read_inputs
from firmware_sim.tasks.digits import digit_images
from firmware_sim.tensor_spec import Array
from toolkit.branch.branch import Branch
from toolkit.errors import ModelError
from toolkit.export.bundle import Calibration
from toolkit.export.infer import synthetic_examples

COUNT = 64
MOST = 512  # of a user's file, chosen evenly from more


def calibration_for(
    branch: Branch, task: str | None, file: Path | None, *, normalise: bool = False
) -> Calibration:
    """The user's examples, the task's own where it brings some, or else synthetic images.

    With `normalise` the examples also say how a device has to normalise its own.
    """
    if normalise:
        return _normalised(branch, file)
    if file is not None:
        examples = _from_file(file, branch)
        chosen = np.linspace(0, len(examples) - 1, min(len(examples), MOST)).astype(int)
        return Calibration(file.name, examples[chosen])
    if task == "atari":
        return Calibration("frames of a random Breakout player", atari_frames(COUNT))
    if task == "digits":
        return Calibration("scikit-learn digits", digit_images()[0][:COUNT])
    return Calibration("synthetic images", synthetic_examples(branch, COUNT))


def atari_frames(count: int) -> Array:
    """Returns stacked 84×84 grey frames of a player that moves at random."""
    players = 4
    environment = vector_environment("breakout", DqnOptions().episode_steps, players=players)
    rng = np.random.default_rng(0)
    frames, _ = environment.reset(seed=0)
    found: list[Array] = []
    while len(found) * players < count:
        actions = rng.integers(0, environment.single_action_space.n, players)
        frames, *_ = environment.step(actions)
        found.append(channels_last(frames))
    environment.close()
    return np.concatenate(found)[:count]


def _normalised(branch: Branch, file: Path | None) -> Calibration:
    if file is None:
        raise ModelError("--normalise needs --calibration: examples as your sensor delivers them.")
    if branch.input_dtype != "float32":
        raise ModelError(
            f"the branch takes {branch.input_dtype}: only numbers with fractions are normalised."
        )
    examples = _from_file(file, branch)
    found = Normalisation.of(examples)
    return Calibration(file.name, found.apply(examples), found)


def _from_file(file: Path, branch: Branch) -> Array:
    examples = read_inputs(file)
    if examples.shape[1:] != branch.input_shape or examples.dtype != branch.input_dtype:
        raise ModelError(
            f"{file} holds {examples.dtype}{list(examples.shape[1:])} examples; the branch takes "
            f"{branch.input_dtype}{list(branch.input_shape)}."
        )
    if not len(examples) or not np.isfinite(examples).all():
        raise ModelError(f"{file} must hold at least one example, and only finite numbers.")
    return examples
