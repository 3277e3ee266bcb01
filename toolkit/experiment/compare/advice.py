"""What a comparison says to the user: a table, one or two sentences, the commands to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.table import Table

from toolkit.experiment.cell import DEVICES, POWERFUL, WEAK
from toolkit.experiment.compare.decision import ArmScores, Decision
from toolkit.experiment.compare.pair import ComparedPair
from toolkit.experiment.figures.arms import ALIKE, ALONE, Arm
from toolkit.experiment.figures.estimate import Estimate
from toolkit.experiment.figures.shown import ACCURACY, Shown
from toolkit.experiment.supervised.cell import SHARE_FIRST

UNCLEAR = ", no clear difference"
MEANINGS = {"homogeneous": "the weak network on all devices", "share-first": "the layers in common",
            "two-loss": "a cascade with a loss at both outputs"}  # fmt: skip


def table(scores: Mapping[str, ArmScores], weak_fraction: float, shown: Shown = ACCURACY) -> Table:
    """Returns the mean ± standard error of every arm on both devices."""
    holds, digits = {WEAK: weak_fraction, POWERFUL: 1 - weak_fraction}, _digits(scores, shown)
    headings = (f"{device}, {100 * holds[device]:g} % of the data" for device in DEVICES)
    made = Table("setting", *headings)
    for arm in scores[WEAK]:
        means = (Estimate.of(scores[device][arm].values()) for device in DEVICES)
        made.add_row(arm.name, *(mean.text(digits=digits) for mean in means))
    return made


def sentences(decision: Decision, scores: Mapping[str, ArmScores], shown: Shown = ACCURACY) -> str:
    """Returns which setting to use and why, with numbers; or that none is clearly better."""
    use, said = decision.use, _Sentences(decision, shown, _digits(scores, shown))
    if use is None:
        listed = "; ".join(f"{arm.name} {said.gains(arm)}" for arm in decision.gains)
        return (
            "No setting is clearly better than training alone on one device without being clearly "
            f"worse on the other. Differences from isolated: {listed}."
        )
    weak, powerful = (said.reached(scores, use, device) for device in DEVICES)
    setting = f"{use.name} ({MEANINGS[use.name]})"
    first = f"Use {setting}: the weak device reaches {weak}, the powerful one {powerful}."
    others = "; ".join(said.beside(arm) for arm in decision.behind)
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


def _digits(scores: Mapping[str, ArmScores], shown: Shown) -> int:
    return shown.digits(
        score for arms in scores.values() for own in arms.values() for score in own.values()
    )


@dataclass(frozen=True)
class _Sentences:
    """Parts of sentences; in them + is better, also where the measure is an error."""

    decision: Decision
    shown: Shown
    digits: int

    def reached(self, scores: Mapping[str, ArmScores], arm: Arm, device: str) -> str:
        """97.5 % instead of 76.5 % alone (+21.0 ± 0.8)"""
        means = (Estimate.of(scores[device][a].values()).mean for a in (arm, ALONE))
        own, alone = (f"{mean:.{self.digits}f}{self.shown.unit}" for mean in means)
        what = f"{self.shown.name} " if self.shown.lower_is_better else ""
        gain = self.decision.gains[arm][device]
        return f"{what}{own} instead of {alone} alone ({self._signed(gain)})"

    def beside(self, arm: Arm) -> str:
        """What speaks against another arm, or that it is as good."""
        for device, gain in self.decision.gains[arm].items():
            if gain.counts and gain.mean < 0:
                return f"{arm.name} costs the {device} device {self._points(gain)}"
        behind = self.decision.behind[arm]
        if arm in self.decision.alike:
            differs = f"{self._text(behind, signed=True)} {self.shown.of_difference}"
            return f"{arm.name} does not differ from it clearly ({differs})"
        if behind.counts:
            return f"{arm.name} is {self._points(behind)} behind on the mean of both devices"
        return f"{arm.name} is not clearly better than training alone ({self.gains(arm)})"

    def gains(self, arm: Arm) -> str:
        found = self.decision.gains[arm].items()
        return ", ".join(f"{device} {self._better(gain)}" for device, gain in found)

    def _better(self, gain: Estimate) -> str:
        better = " better" if self.shown.lower_is_better else ""
        return self._text(gain, signed=True) + better

    def _signed(self, gain: Estimate) -> str:
        return self._better(gain) + ("" if gain.counts else UNCLEAR)

    def _points(self, difference: Estimate) -> str:
        size = Estimate(abs(difference.mean), difference.error, difference.seeds)
        return f"{self._text(size)} {self.shown.of_difference}"

    def _text(self, estimate: Estimate, *, signed: bool = False) -> str:
        return estimate.text(digits=self.digits, signed=signed)
