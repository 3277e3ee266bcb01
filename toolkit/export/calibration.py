"""Examples that full int8 quantisation takes its ranges from."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from firmware_sim.tasks.digits import digit_images
from toolkit.branch.branch import Branch
from toolkit.errors import ModelError
from toolkit.export.bundle import Calibration
from toolkit.export.infer import synthetic_examples

COUNT = 64


def calibration_for(branch: Branch, task: str | None, file: Path | None) -> Calibration:
    """The user's examples, the task's own where it brings some, or else synthetic images."""
    if file is not None:
        return Calibration(file.name, _from_file(file, branch))
    if task == "atari":
        return Calibration("frames of a random Breakout player", atari_frames(COUNT))
    if task == "digits":
        return Calibration("scikit-learn digits", digit_images()[0][:COUNT])
    return Calibration("synthetic images", synthetic_examples(branch, COUNT))


def atari_frames(count: int) -> npt.NDArray[np.uint8]:
    """Stacked 84×84 grey frames of a player that moves at random."""
    from ale_py.vector_env import AtariVectorEnv

    players = 4
    environment = AtariVectorEnv("breakout", num_envs=players)
    rng = np.random.default_rng(0)
    frames, _ = environment.reset(seed=0)
    found: list[npt.NDArray[np.uint8]] = []
    while len(found) * players < count:
        actions = rng.integers(0, environment.single_action_space.n, players)
        frames, *_ = environment.step(actions)
        found.append(frames.transpose(0, 2, 3, 1))  # the stack becomes channels
    environment.close()
    return np.concatenate(found)[:count]


def _from_file(file: Path, branch: Branch) -> npt.NDArray[Any]:
    try:
        with file.open("rb") as opened:
            arrays = np.load(opened, allow_pickle=False)
            if not isinstance(arrays, Mapping):  # a lone .npy
                raise ModelError(f"{file} is no .npz file; np.savez(file, x=examples) writes one.")
            examples = arrays["x"]
    except KeyError:
        raise ModelError(f"{file} has no array 'x' with examples.") from None
    except OSError as error:
        raise ModelError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{file} cannot be read as .npz ({error}).") from None
    if examples.shape[1:] != branch.input_shape or examples.dtype != branch.input_dtype:
        raise ModelError(
            f"{file} holds {examples.dtype}{list(examples.shape[1:])} examples; the branch takes "
            f"{branch.input_dtype}{list(branch.input_shape)}."
        )
    if not len(examples) or not np.isfinite(examples).all():
        raise ModelError(f"{file} must hold at least one example, and only finite numbers.")
    return np.asarray(examples)
