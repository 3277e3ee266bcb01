"""Which setting to use, from accuracies that can be worked out by hand."""

import pytest

from tests.toolkit.experiment.compare.made_up import CASCADE, FIRST, scores
from toolkit.experiment.cell import POWERFUL, WEAK
from toolkit.experiment.compare.decision import decide
from toolkit.experiment.figures.arms import ALIKE
from toolkit.experiment.figures.shown import Shown


def test_the_best_of_those_that_cost_nothing() -> None:
    """Homogeneous is best on the weak device, and costs the powerful one three points."""
    found = decide(
        scores(
            [(70, 71, 72), (92, 93, 95), (75, 77, 77), (91, 92, 93)],
            [(98, 97, 98), (95, 94, 95), (98, 97, 98), (98, 98, 98)],
        )
    )
    assert (found.use, found.alike) == (CASCADE, ())
    gain = found.gains[ALIKE][POWERFUL]
    assert (gain.mean, gain.error) == (-3, 0)
    gain = found.gains[CASCADE][WEAK]
    assert (gain.mean, gain.error, gain.counts) == (21, 0, True)
    assert not found.gains[CASCADE][POWERFUL].counts  # 0, 1, 0
    # On the mean of both devices: 94.5, 95, 95.5 and 86.5, 87, 87.5.
    behind = found.behind[FIRST]
    assert (behind.mean, behind.error, behind.counts) == (8, 0, True)


def test_a_difference_of_two_standard_errors_decides() -> None:
    """+1, +2, +3 has a mean of 2 and a standard error of 0.577; -1, +2, +5 one of 1.73."""
    alone = (80, 80, 80)
    for gains, use in (((81, 82, 83), ALIKE), ((79, 82, 85), None)):
        assert decide(scores([alone, gains], [alone, alone])).use == use


def test_what_helps_one_device_and_costs_the_other_is_not_used() -> None:
    found = decide(scores([(70, 71, 72), (90, 91, 92)], [(98, 97, 98), (96, 95, 96)]))
    assert (found.use, found.alike, found.behind) == (None, (), {})


def test_what_is_worse_everywhere_is_not_used() -> None:
    alone, worse = (80, 80, 80), (70, 71, 72)
    assert decide(scores([alone, worse, worse], [alone, worse, alone])).use is None


def test_a_gain_of_the_powerful_device_alone_is_enough() -> None:
    alone, better = (80, 81, 82), (84, 85, 87)
    assert decide(scores([alone, alone], [alone, better])).use == ALIKE


def test_settings_that_do_not_differ_clearly_are_named() -> None:
    """Mean of both devices: 90, 91, 92 for homogeneous; 91, 91, 92.5 for the cascade."""
    found = decide(
        scores(
            [(70, 71, 72), (90, 92, 92), (72, 73, 74), (90, 91, 93)],
            [(88, 89, 90), (90, 90, 92), (88, 89, 90), (92, 91, 92)],
        )
    )
    assert (found.use, found.alike) == (CASCADE, (ALIKE,))
    assert found.behind[ALIKE].mean == pytest.approx(0.5)
    assert found.behind[ALIKE].error == pytest.approx(0.5 / 3**0.5)
    assert found.behind[FIRST].counts


def test_seeds_are_compared_with_themselves() -> None:
    """The gain is 2 in every seed, though the seeds differ by 20 points."""
    alone, better = (60, 70, 80), (62, 72, 82)
    found = decide(scores([alone, better], [alone, alone]))
    assert found.use == ALIKE
    assert found.gains[ALIKE][WEAK].error == 0


def test_of_errors_the_lowest_is_best() -> None:
    """The same numbers as errors: homogeneous is lower by 0.2 on the weak device."""
    rmse = Shown("test_rmse", "test RMSE", of_difference="RMSE", lower_is_better=True)
    found = decide(scores([(0.5, 0.6), (0.3, 0.4)], [(0.2, 0.2), (0.2, 0.2)]), rmse)
    assert found.use == ALIKE
    gain = found.gains[ALIKE][WEAK]
    assert (gain.mean, gain.counts) == (pytest.approx(0.2), True)
    higher = decide(scores([(0.3, 0.4), (0.5, 0.6)], [(0.2, 0.2), (0.2, 0.2)]), rmse)
    assert higher.use is None
