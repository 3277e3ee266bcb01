"""A pair of networks that does not exist, and scores of it."""

from collections.abc import Sequence

from toolkit.experiment.cell import POWERFUL, WEAK
from toolkit.experiment.compare.decision import ArmScores
from toolkit.experiment.compare.pair import ComparedPair
from toolkit.experiment.figures.arms import ALIKE, ALONE, Arm

PAIR = ComparedPair(
    weak="my.py:weak",
    strong="my.py:strong",
    weak_shares_all=True,
    common=("stem1", "stem2"),
    share_common=False,
    examples=1200,
    operations=(100, 200),
    digest="0123456789abcdef",
)
FIRST, CASCADE = Arm("heterogeneous", "share-first"), Arm("heterogeneous", "two-loss")
ARMS = (ALONE, ALIKE, FIRST, CASCADE)
Row = Sequence[float]


def scores(weak: Sequence[Row], powerful: Sequence[Row]) -> dict[str, ArmScores]:
    """One row for each arm, one column for each seed."""
    return {
        device: {arm: dict(enumerate(row)) for arm, row in zip(ARMS, rows, strict=False)}
        for device, rows in ((WEAK, weak), (POWERFUL, powerful))
    }
