"""The cells of a comparison, the engine that runs them, and about how long they take."""

from dataclasses import replace

import pytest

from tests.toolkit.experiment.compare.made_up import PAIR
from toolkit.experiment.compare.planning import (
    comparison_cells,
    comparison_options,
    expected_seconds,
)

OPTIONS = comparison_options(PAIR, 20)


def test_four_settings_or_three_of_every_seed() -> None:
    cells = comparison_cells(OPTIONS, weak_fraction=0.05, seeds=3, share_first=True)
    assert [cell.name for cell in cells[5:10]] == [
        "isolated_any_weak_weak-0.05_seed-1",
        "isolated_share-first_powerful_weak-0.05_seed-1",
        "homogeneous_any_both_weak-0.05_seed-1",
        "heterogeneous_share-first_both_weak-0.05_seed-1",
        "heterogeneous_two-loss_both_weak-0.05_seed-1",
    ]
    assert [cell.seed for cell in cells] == [0] * 5 + [1] * 5 + [2] * 5
    fewer = comparison_cells(OPTIONS, weak_fraction=0.05, seeds=3, share_first=False)
    assert set(cells) - set(fewer) == {cells[3], cells[8], cells[13]}


@pytest.mark.parametrize(("held", "used"), [(100, 640), (1200, 1200), (50_000, 2000)])
def test_a_round_is_a_pass_over_a_small_set_and_a_part_of_a_large_one(held: int, used: int) -> None:
    assert comparison_options(replace(PAIR, examples=held), 20).examples_per_round == used


def test_the_faster_engine_runs_it() -> None:
    assert OPTIONS.engine == "tflite"
    large = replace(PAIR, operations=(1_000_000, 28_000_000))
    assert comparison_options(large, 20).engine == "tf"


def test_the_estimate_grows_with_the_work_and_falls_with_the_cores() -> None:
    cells = comparison_cells(OPTIONS, weak_fraction=0.05, seeds=4, share_first=True)
    operations = 200_000, 300_000  # of networks of some thousand parameters
    start = expected_seconds(cells[:1], (0, 0), jobs=100)
    work = expected_seconds(cells, operations, jobs=1) - start
    assert 30 < work < 120
    assert expected_seconds(cells, operations, jobs=2) - start == pytest.approx(work / 2, rel=0.05)
    assert expected_seconds(cells[:10], operations, jobs=1) - start == pytest.approx(
        work / 2, rel=0.05
    )
    assert expected_seconds(cells, (400_000, 600_000), jobs=1) - start > 1.5 * work
