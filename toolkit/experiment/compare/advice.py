"""What a comparison says to the user: a table, one or two sentences, the commands to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from rich.table import Table

from toolkit.experiment.cell import DEVICES, POWERFUL, WEAK
from toolkit.experiment.compare.decision import ArmScores, Decision
from toolkit.experiment.compare.pair import ComparedPair
from toolkit.experiment.figures.arms import ALIKE, ALONE, Arm
from toolkit.experiment.figures.estimate import Estimate
from toolkit.experiment.supervised.cell import SHARE_FIRST

UNCLEAR = ", no clear difference"
MEANINGS = {"homogeneous": "the weak network on all devices", "share-first": "the layers in common",
            "two-loss": "a cascade with a loss at both outputs"}  # fmt: skip


def table(scores: Mapping[str, ArmScores], weak_fraction: float) -> Table:
    """Returns the mean ± standard error of every arm on both devices."""
    holds = {WEAK: weak_fraction, POWERFUL: 1 - weak_fraction}
    headings = (f"{device}, {100 * holds[device]:g} % of the data" for device in DEVICES)
    made = Table("setting", *headings)
    for arm in scores[WEAK]:
        made.add_row(arm.name, *(Estimate.of(scores[d][arm].values()).text() for d in DEVICES))
    return made


def sentences(decision: Decision, scores: Mapping[str, ArmScores]) -> str:
    """Returns which setting to use and why, with numbers; or that none is clearly better."""
    use = decision.use
    if use is None:
        listed = "; ".join(f"{arm.name} {_gains(decision, arm)}" for arm in decision.gains)
        return (
            "No setting is clearly better than training alone on one device without being clearly "
            f"worse on the other. Differences from isolated: {listed}."
        )
    weak, powerful = (_reached(decision, scores, use, device) for device in DEVICES)
    setting = f"{use.name} ({MEANINGS[use.name]})"
    first = f"Use {setting}: the weak device reaches {weak}, the powerful one {powerful}."
    others = "; ".join(_beside(decision, arm) for arm in decision.behind)
    return f"{first} {others[:1].upper()}{others[1:]}." if others else first


def commands(use: Arm, pair: ComparedPair) -> Iterator[str]:
    """Yields what exports both bundles for a setting."""
    whole = () if pair.weak_shares_all else ("--share", "all")
    weak, strong = ("--model", pair.weak), ("--model", pair.strong)
    if use == ALIKE:
        yield _export(WEAK, *weak, *whole)
        yield _export(POWERFUL, *weak, *whole)
    elif use.topology == SHARE_FIRST:
        stem = () if pair.share_common else ("--share", ",".join(pair.common))
        yield _export(WEAK, *weak, *stem)
        yield _export(POWERFUL, *strong, *stem)
    else:
        yield _export(WEAK, *weak, *whole)
        yield _export(POWERFUL, *strong, "--cascade", pair.weak, *whole)


def _export(profile: str, *options: str) -> str:
    return shlex.join(["toolkit", "export", "--profile", profile, *options])


def _reached(decision: Decision, scores: Mapping[str, ArmScores], arm: Arm, device: str) -> str:
    """97.5 % instead of 76.5 % alone (+21.0 ± 0.8)"""
    own, alone = (Estimate.of(scores[device][a].values()).mean for a in (arm, ALONE))
    return f"{own:.1f} % instead of {alone:.1f} % alone ({_signed(decision.gains[arm][device])})"


def _beside(decision: Decision, arm: Arm) -> str:
    """What speaks against another arm, or that it is as good."""
    for device, gain in decision.gains[arm].items():
        if gain.counts and gain.mean < 0:
            return f"{arm.name} costs the {device} device {_points(gain)}"
    behind = decision.behind[arm]
    if arm in decision.alike:
        return f"{arm.name} does not differ from it clearly ({behind.text(signed=True)} points)"
    if behind.counts:
        return f"{arm.name} is {_points(behind)} behind on the mean of both devices"
    return f"{arm.name} is not clearly better than training alone ({_gains(decision, arm)})"


def _gains(decision: Decision, arm: Arm) -> str:
    return ", ".join(f"{d} {g.text(signed=True)}" for d, g in decision.gains[arm].items())


def _signed(gain: Estimate) -> str:
    return gain.text(signed=True) + ("" if gain.counts else UNCLEAR)


def _points(difference: Estimate) -> str:
    size = Estimate(abs(difference.mean), difference.error, difference.seeds)
    return f"{size.text()} points"
