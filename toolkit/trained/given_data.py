"""Data that a user gives to test what was trained with: the files that a device takes."""

from __future__ import annotations

from pathlib import Path

from firmware_sim.bundle.reader import Bundle
from firmware_sim.normalisation import Normalisation
from firmware_sim.tasks import cifar10
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.labelled import Examples, check_examples, check_kind, normalised


def read_given(bundle: Bundle, data: Path, normalisation: Normalisation | None) -> Examples:
    """Returns the examples of an .npz file or of CIFAR-10's folder; raises unless they fit.

    They are normalised as the weights have been trained with.
    """
    if data.is_dir():
        target = check_kind("cifar10", bundle, cifar10.EXAMPLE)
        found = cifar10.read_cifar10(data)
    else:
        target = check_kind("npz", bundle)
        found = read_examples(data)
    fitting = check_examples(str(data), found, bundle.training_inputs["x"].of_one, target)
    return normalised(fitting, normalisation)
