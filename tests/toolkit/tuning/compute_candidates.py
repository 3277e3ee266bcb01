"""Runs every candidate of a layer in a runtime: RUNTIME MODEL INPUTS.npz ANSWERS.npz"""

import sys
from pathlib import Path

import numpy as np

from firmware_sim.training.runtime import Model
from firmware_sim.tune import SET

runtime, path, inputs, answers = sys.argv[1:]
given = dict(np.load(inputs))
model = Model(Path(path), runtime=runtime)
model.call(SET, kernel=given.pop("kernel"))
found = {
    f"{name}/{tensor}": value
    for name in model.signatures
    if name != SET
    for tensor, value in model.call(name, **given).items()
}
np.savez(answers, **found)
