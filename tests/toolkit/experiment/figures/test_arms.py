"""Arms, their standard errors and paired differences, with numbers worked out by hand."""

import math
import random

import pytest

from toolkit.experiment.figures.arms import ALIKE, ALONE, Arm, Comparison, arms_of
from toolkit.experiment.figures.estimate import Estimate, difference
from toolkit.experiment.figures.table import difference_table, score_table

CASCADING, TWO_LOSS = Arm("heterogeneous", "cascading"), Arm("heterogeneous", "two-loss")


def test_the_mean_has_the_standard_error_of_the_sample() -> None:
    found = Estimate.of([1.0, 2.0, 4.0, 5.0])
    # Deviations 2, 1, 1, 2: s² = 10 / 3.
    assert (found.mean, found.seeds) == (3.0, 4)
    assert found.error == pytest.approx(math.sqrt(10 / 3) / 2)
    assert found.text() == "3.0 ± 0.9"
    assert found.text(digits=2, signed=True) == "+3.00 ± 0.91"


def test_one_seed_has_no_error_and_never_counts() -> None:
    found = Estimate.of([-7.25])
    assert (found.error, found.counts) == (None, False)
    assert found.text(digits=2, signed=True) == "-7.25"


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [
        ([1.0, 3.0], False),  # 2 ± 1, exactly two standard errors
        ([1.1, 3.0], True),
        ([-3.0, -1.1], True),
        ([0.0, 0.0], False),
        ([0.5, 0.5], True),  # without any spread
    ],
)
def test_a_difference_counts_above_two_standard_errors(numbers: list[float], counts: bool) -> None:
    assert Estimate.of(numbers).counts == counts


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 10 from each other, and both arms by 1 or 2 in the same seed."""
    control = {0: 10.0, 1: 20.0, 2: 30.0, 7: 1000.0}
    arm = {2: 32.0, 1: 21.0, 0: 12.0, 9: -1000.0}
    found = difference(arm, control)
    assert found is not None and found.seeds == 3
    assert found.mean == pytest.approx(5 / 3)
    assert found.error == pytest.approx(1 / 3)
    assert difference(arm, {5: 1.0}) is None


def test_names_and_order_of_arms() -> None:
    arms = [
        ALONE,
        ALIKE,
        Arm("heterogeneous", "share-first"),
        CASCADING,
        Arm("heterogeneous", "cascading", branch_dropout=False),
        TWO_LOSS,
        Arm("isolated", "cascading"),
        Arm("isolated", "cascading", branch_dropout=False),
        Arm("isolated", "two-loss"),
    ]
    assert [arm.name for arm in arms] == [
        "isolated", "homogeneous", "share-first", "cascading", "cascading, no branch dropout",
        "two-loss", "isolated, cascading", "isolated, cascading, no branch dropout",
        "isolated, two-loss",
    ]  # fmt: skip
    shuffled = random.Random(0).sample(arms, len(arms))
    assert arms_of([Comparison((), {arm: {} for arm in shuffled})]) == arms


@pytest.mark.parametrize(
    ("cell", "arm"),
    [
        (("isolated", "any", "weak"), ALONE),
        (("isolated", "share-first", "powerful"), ALONE),  # its plain network
        (("isolated", "any", "powerful"), ALONE),
        (("isolated", "two-loss", "powerful"), Arm("isolated", "two-loss")),
        (("homogeneous", "any", "powerful"), ALIKE),
        (("heterogeneous", "two-loss", "weak"), TWO_LOSS),
    ],
)
def test_the_control_of_the_powerful_device_is_its_plain_network(
    cell: tuple[str, str, str], arm: Arm
) -> None:
    assert Arm.of(*cell) == arm


COMPARISONS = [
    Comparison(
        ("weak", "5 %"),
        {
            ALONE: {0: 80.0, 1: 82.0},
            ALIKE: {0: 90.0, 1: 91.0},
            CASCADING: {0: 90.0, 1: 92.5},
            TWO_LOSS: {0: 91.0},
        },
    ),
    Comparison(("powerful", "95 %"), {ALONE: {0: 95.0, 1: 97.0}, CASCADING: {0: 94.0, 1: 95.9}}),
]


def test_scores_side_by_side() -> None:
    text = str(score_table(COMPARISONS, ("device", "holds"), "what it is"))
    assert text.splitlines() == [
        "| device | holds | isolated | homogeneous | cascading | two-loss | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| weak | 5 % | 81.0 ± 1.0 | 90.5 ± 0.5 | 91.2 ± 1.2 | 91.0 | 1–2 |",
        "| powerful | 95 % | 96.0 ± 1.0 | – | 95.0 ± 1.0 | – | 2 |",
        "",
        "what it is.",
    ]


def test_differences_to_both_controls() -> None:
    table = difference_table(COMPARISONS, ("device", "holds"))
    assert str(table).splitlines() == [
        "| device | holds | arm | − isolated | − homogeneous | seeds |",
        "| --- | --- | --- | --- | --- | --- |",
        "| weak | 5 % | homogeneous | **+9.50 ± 0.50** | – | 2 |",
        "| weak | 5 % | cascading | **+10.25 ± 0.25** | +0.75 ± 0.75 | 2 |",
        "| weak | 5 % | two-loss | +11.00 | +1.00 | 1 |",
        "| powerful | 95 % | cascading | **-1.05 ± 0.05** | – | 2 |",
        "",
        "differences of the same seeds, mean ± standard error; bold: more than 2 standard errors.",
    ]


def test_one_seed_makes_no_claim() -> None:
    single = Comparison(("weak", "5 %"), {ALONE: {0: 80.0}, TWO_LOSS: {0: 91.0}})
    table = difference_table([single], ("device", "holds"))
    assert str(table).splitlines()[2:] == [
        "| weak | 5 % | two-loss | +11.00 | – | 1 |",
        "",
        "differences of the same seed.",
    ]
