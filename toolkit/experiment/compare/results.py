"""The scores of a comparison, from the results of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.experiment.cell import DEVICES
from toolkit.experiment.figures.arms import Arm
from toolkit.experiment.figures.estimate import Scores
from toolkit.experiment.figures.supervised_summary import final_accuracies
from toolkit.experiment.running.results import known_result, results_of
from toolkit.experiment.supervised.cell import SupervisedCell


def scores_of(cells: Sequence[SupervisedCell], folder: Path) -> dict[str, dict[Arm, Scores]]:
    """Returns the test accuracies in percent, by device, arm and seed, of these cells alone."""
    known = [result for cell in cells if (result := known_result(folder, cell))]
    found = results_of(known, SupervisedCell)
    fraction = cells[0].weak_fraction
    return {device: final_accuracies(found, device, fraction) for device in DEVICES}
