"""Decides from the results of a comparison which setting to use.

For every arm, device and seed there is an accuracy, or an error. A difference of two arms is the
mean of the differences seed by seed, above 0 where the first one is better; it counts if it exceeds
two standard errors.

    helps    an arm that is better than isolated on at least one device, and worse on none
    use      of the arms that help, the one that is best on the mean of both devices
    alike    others that help, and whose mean of both devices differs from it by nothing that counts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from toolkit.experiment.cell import DEVICES
from toolkit.experiment.figures.arms import ALONE, Arm
from toolkit.experiment.figures.estimate import Estimate, Scores, difference
from toolkit.experiment.figures.shown import ACCURACY, Shown

ArmScores = Mapping[Arm, Scores]  # accuracies in percent or errors, by arm and seed


@dataclass(frozen=True)
class Decision:
    """Which arm to use, and what that follows from."""

    use: Arm | None  # None: no arm helps
    alike: tuple[Arm, ...]
    gains: Mapping[Arm, Mapping[str, Estimate]]  # how much better than isolated, by device
    behind: Mapping[Arm, Estimate]  # how much `use` is better, on the mean of both devices


def decide(measured: Mapping[str, ArmScores], shown: Shown = ACCURACY) -> Decision:
    """Returns the decision from the scores by device; both have the arm `isolated`."""
    scores = {
        device: {arm: {seed: shown.gain(s) for seed, s in own.items()} for arm, own in arms.items()}
        for device, arms in measured.items()
    }
    fleets = [arm for arm in scores[DEVICES[0]] if arm != ALONE]
    gains = {arm: {d: _difference(scores[d], arm, ALONE) for d in DEVICES} for arm in fleets}
    helps = [arm for arm in fleets if _helps(gains[arm])]
    both = {arm: _mean_of_devices(scores, arm) for arm in fleets}
    if not helps:
        return Decision(None, (), gains, {})
    use = max(helps, key=lambda arm: fmean(both[arm].values()))
    behind = {arm: _difference(both, use, arm) for arm in fleets if arm != use}
    alike = tuple(arm for arm in helps if arm != use and not behind[arm].counts)
    return Decision(use, alike, gains, behind)


def _helps(gains: Mapping[str, Estimate]) -> bool:
    clear = [gain.mean for gain in gains.values() if gain.counts]
    return bool(clear) and min(clear) > 0


def _mean_of_devices(scores: Mapping[str, ArmScores], arm: Arm) -> dict[int, float]:
    """Returns the mean of both devices, by seed."""
    own = [scores[device][arm] for device in DEVICES]
    seeds = sorted(own[0].keys() & own[1].keys())
    return {seed: fmean(found[seed] for found in own) for seed in seeds}


def _difference(scores: ArmScores, arm: Arm, other: Arm) -> Estimate:
    found = difference(scores[arm], scores[other])
    assert found is not None, "all arms have the same seeds"
    return found
