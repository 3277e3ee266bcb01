"""The players' figure and tables from results alone, with numbers that are worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from toolkit.experiment.cell import SETTINGS
from toolkit.experiment.figures.arms import ALONE
from toolkit.experiment.figures.draw import draw_figures
from toolkit.experiment.figures.players_figure import draw_players
from toolkit.experiment.figures.players_summary import (
    Panel,
    PlayerResult,
    final_scores,
    learning_curves,
    smoothed,
)
from toolkit.experiment.figures.study_tables import StudyTables, study_tables
from toolkit.experiment.players.cell import PlayerOptions, plan
from toolkit.experiment.running.results import Result
from toolkit.experiment.scores import Final, Point

ROUNDS, STEPS = 40, 1_000
LEVEL = {"isolated": 10.0, "homogeneous": 20.0, "heterogeneous": 30.0}
OPTIONS = PlayerOptions(
    task="atari", rounds=ROUNDS, steps_per_round=STEPS, warm_up=1, exploration=1, replay=(9, 9),
    test_steps=1,
)  # fmt: skip


def study(
    games: Sequence[str] = ("breakout",),
    modes: Sequence[str] = ("sync",),
    rates: Sequence[float] = (1.0,),
    settings: Sequence[str] = SETTINGS,
    topologies: Sequence[str] = ("share-first",),
    seeds: int = 3,
    options: PlayerOptions = OPTIONS,
) -> list[PlayerResult]:
    """Scores grow by one with every round, from a level of their own; seeds are 5 apart."""
    results = []
    for cell in plan(
        options, games=games, settings=settings, topologies=topologies, modes=modes,
        weak_rates=rates, seeds=range(seeds),
    ):  # fmt: skip
        points, finals = [], {}
        for device in cell.devices:
            level = LEVEL[cell.setting] + 5 * cell.seed + 100 * (device == "powerful")
            level += 2 * (cell.topology == "two-loss") * (1 + cell.seed)
            scores = [level + number for number in range(1, cell.rounds(device) + 1)]
            points += [
                Point(device, n, {"score": s, "steps": n * cell.steps(device), "loss": 0.0})
                for n, s in enumerate(scores, start=1)
            ]
            finals[device] = Final(device, {"score": -1.0})  # what is shown comes from the tests
        results.append(Result(cell, {"commit": "0123456789abcdef"}, points, finals, 1.0))
    return results


def tables(results: Sequence[PlayerResult]) -> StudyTables:
    (found,) = study_tables(results)
    return found


def test_curves_are_means_over_a_sliding_window() -> None:
    curve = learning_curves(study(), Panel("breakout", "sync", 1.0, "weak"))[ALONE]
    assert list(curve) == [STEPS * n for n in range(1, ROUNDS + 1)]
    assert curve[STEPS].median == 10 + 5 + 1  # level, seed 1 of 0, 1, 2, and the first score
    assert curve[3 * STEPS].median == 15 + 2  # all that there are
    assert curve[40 * STEPS].median == 15 + np.mean(range(31, 41))  # the last quarter
    assert (curve[STEPS].lowest, curve[STEPS].highest) == (11, 21)


def test_the_window_is_one_of_steps() -> None:
    """Where tests are missing it has fewer of them, and does not reach further back."""
    (result, *_) = study(settings=["isolated"])
    whole = smoothed(result, "weak")
    result.points[:] = [point for point in result.points if point.round not in range(12, 40)]
    assert smoothed(result, "weak")[40 * STEPS] == 10 + 40
    assert smoothed(result, "weak")[11 * STEPS] == whole[11 * STEPS] == 10 + np.mean(range(2, 12))


def test_a_final_score_is_the_last_of_its_curve() -> None:
    results = study(rates=(1.0, 0.25), modes=("sync", "async"), topologies=("two-loss",))
    for rate in (1.0, 0.25):
        for mode in ("sync", "async"):
            for device in ("weak", "powerful"):
                panel = Panel("breakout", mode, rate, device)
                finals, curves = final_scores(results, panel), learning_curves(results, panel)
                assert [arm.name for arm in finals] == ["isolated", "homogeneous", "two-loss"]
                for arm, scores in finals.items():
                    *_, last = curves[arm].values()
                    assert sorted(scores.values())[1] == last.median


def test_the_papers_arrangement() -> None:
    results = study(rates=(1.0, 0.5, 0.25)) + study(("beam_rider", "space_invaders"))
    figure = draw_players(results, "sync")
    panels = {p.get_title(loc="left"): p for p in figure.axes if p.axison}
    half, quarter = ", $v_{weak} = 0.5$", ", $v_{weak} = 0.25$"
    assert sorted(panels) == [
        "(a) breakout: powerful",
        "(b) breakout: weak",
        f"(c) breakout: powerful{half}",
        f"(d) breakout: weak{half}",
        f"(e) breakout: powerful{quarter}",
        f"(f) breakout: weak{quarter}",
        "(g) beam_rider: powerful",
        "(h) beam_rider: weak",
        "(i) space_invaders: powerful",
        "(j) space_invaders: weak",
    ]
    rows_of = {title: p.get_subplotspec().rowspan.start for title, p in panels.items()}
    columns = {title: p.get_subplotspec().colspan.start for title, p in panels.items()}
    assert [(rows_of[t], columns[t]) for t in sorted(panels)] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip
    # The weak device's panel ends with its own steps, also of the one that was alone.
    assert panels[f"(f) breakout: weak{quarter}"].get_xlim()[1] == pytest.approx(10)
    arms = ["isolated", "homogeneous", "share-first"]
    for panel in panels.values():
        assert [line.get_label() for line in panel.lines] == arms
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == arms


def test_all_arms_are_drawn_by_setting_and_topology() -> None:
    topologies = ("share-first", "cascading", "two-loss")
    figure = draw_players(study(topologies=topologies), "sync")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines) == ["isolated", "homogeneous", *topologies]
    assert len({line.get_color() for line in lines.values()}) == 5
    assert len({lines[topology].get_linestyle() for topology in topologies}) == 3
    assert lines["isolated"].get_linestyle() == lines["homogeneous"].get_linestyle()


def test_what_there_is_not_is_left_out() -> None:
    figure = draw_players(study(rates=(0.5,), settings=("isolated", "heterogeneous")), "sync")
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == [
        "(a) breakout: powerful, $v_{weak} = 0.5$",
        "(b) breakout: weak, $v_{weak} = 0.5$",
    ]
    assert [line.get_label() for line in figure.axes[0].lines] == ["isolated", "share-first"]


def test_each_mode_has_its_figure(tmp_path: Path) -> None:
    results = study(modes=("sync", "async"), rates=(1.0, 0.5))
    written = draw_figures(results, tmp_path)
    assert [file.name for file in written] == [
        "rl.png", "rl.svg", "rl_async.png", "rl_async.svg", "table.md",
    ]  # fmt: skip
    assert all(file.stat().st_size for file in written)


def test_the_tables_of_players() -> None:
    found = tables(study(modes=("async",), rates=(0.5,), topologies=("share-first", "two-loss")))
    lines = str(found.scores).splitlines()
    assert lines[0] == (
        "| game | coordinator | rate of weak | device | isolated | homogeneous | share-first | "
        "two-loss | seeds |"
    )
    # The weak one has 20 rounds, alone too: the last quarter is 16 … 20, on average 18. Seeds are 5
    # apart, so the standard error is 5 / √3; of two-loss they are 7 apart.
    assert lines[2] == (
        "| breakout | async | 0.5 | weak | 33.0 ± 2.9 | 43.0 ± 2.9 | 53.0 ± 2.9 | 57.0 ± 4.0 | 3 |"
    )
    # Powerful: 40 rounds, the last quarter of which are 31 … 40, on average 35.5.
    assert lines[3] == (
        "| breakout | async | 0.5 | powerful | 150.5 ± 2.9 | 160.5 ± 2.9 | 170.5 ± 2.9 | "
        "174.5 ± 4.0 | 3 |"
    )
    assert lines[-1] == (
        "atari: mean score of the tests in the last 25 % of a device's steps, mean ± standard "
        "error of 3 seeds; 40 rounds of 1000 steps of the powerful device, warm-up 1, exploration "
        "1, replay 9 and 9 steps; engine tflite; commit 0123456789ab."
    )
    rows = str(found.differences).splitlines()[2:8]
    assert rows[2] == (
        "| breakout | async | 0.5 | weak | two-loss | **+24.00 ± 1.15** | **+14.00 ± 1.15** | 3 |"
    )
    assert rows[4] == (
        "| breakout | async | 0.5 | powerful | share-first | **+20.00 ± 0.00** | "
        "**+10.00 ± 0.00** | 3 |"
    )


def test_a_weak_device_is_compared_with_the_control_of_its_own_rate() -> None:
    results = study(rates=(1.0, 0.25), settings=("isolated", "heterogeneous"))
    found = [row[2:5] for row in tables(results).scores.rows]
    assert found == [
        ("1", "weak", "50.5 ± 2.9"),
        ("1", "powerful", "150.5 ± 2.9"),
        ("0.25", "weak", "50.5 ± 2.9"),  # its rounds are shorter, and as many
        ("0.25", "powerful", "150.5 ± 2.9"),
    ]
    others = [r for r in results if r.cell.weak_rate != 0.25 or r.cell.setting != "isolated"]
    assert [row[4] for row in tables(others).scores.rows] == [
        "50.5 ± 2.9", "150.5 ± 2.9", "–", "150.5 ± 2.9",
    ]  # fmt: skip


def test_results_with_other_options_are_a_table_of_their_own() -> None:
    longer = replace(OPTIONS, rounds=80)
    results = study(seeds=2) + study(("asterix",), options=longer, seeds=1)
    first, second = study_tables(results)
    assert {row[0] for row in first.scores.rows} == {"breakout"}
    assert {row[0] for row in second.scores.rows} == {"asterix"}
    assert "1 seed; 80 rounds" in second.scores.caption
    assert str(second.differences).endswith("\ndifferences of the same seed.\n")
