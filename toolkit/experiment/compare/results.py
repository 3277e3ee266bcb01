"""The scores of a comparison, from the results of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.experiment.cell import DEVICES
from toolkit.experiment.figures.arms import Arm
from toolkit.experiment.figures.estimate import Scores
from toolkit.experiment.figures.shown import Shown, shown_of
from toolkit.experiment.figures.supervised_summary import final_scores
from toolkit.experiment.running.results import known_result, results_of
from toolkit.experiment.supervised.cell import SupervisedCell


def scores_of(
    cells: Sequence[SupervisedCell], folder: Path
) -> tuple[dict[str, dict[Arm, Scores]], Shown]:
    """Returns the test scores by device, arm and seed, of these cells alone; and their measure."""
    known = [result for cell in cells if (result := known_result(folder, cell))]
    found = results_of(known, SupervisedCell)
    fraction = cells[0].weak_fraction
    scores = {device: final_scores(found, device, fraction) for device in DEVICES}
    return scores, shown_of(found)
