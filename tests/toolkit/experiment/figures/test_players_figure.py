"""The players' figure and table from results alone, with numbers that can be worked out by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from toolkit.experiment.cell import SETTINGS
from toolkit.experiment.figures.draw import draw_figures
from toolkit.experiment.figures.players_figure import draw_players
from toolkit.experiment.figures.players_summary import Line, PlayerResult, learning_curve
from toolkit.experiment.figures.players_table import players_table
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
) -> list[PlayerResult]:
    """Scores grow by one with every round, from a level of their own; seeds are 5 apart."""
    results = []
    for cell in plan(
        OPTIONS, games=games, settings=settings, topologies=["share-first"], modes=modes,
        weak_rates=rates, seeds=range(3),
    ):  # fmt: skip
        points, finals = [], {}
        for device in cell.devices:
            level = LEVEL[cell.setting] + 5 * cell.seed + 100 * (device == "powerful")
            scores = [level + number for number in range(1, cell.rounds(device) + 1)]
            points += [
                Point(device, n, {"score": s, "steps": n * cell.steps(device), "loss": 0.0})
                for n, s in enumerate(scores, start=1)
            ]
            finals[device] = Final(
                device, {"score": float(np.mean(scores[-cell.window(device) :]))}
            )
        results.append(Result(cell, {"commit": "0123456789abcdef"}, points, finals, 1.0))
    return results


def test_curves_are_means_over_a_sliding_window() -> None:
    curve = learning_curve(study(), Line("breakout", "isolated", "weak", 1.0))
    assert list(curve) == [STEPS * n for n in range(1, ROUNDS + 1)]
    assert curve[STEPS].median == 10 + 5 + 1  # level, seed 1 of 0, 1, 2, and the first score
    assert curve[3 * STEPS].median == 15 + 2  # all that there are
    assert curve[40 * STEPS].median == 15 + np.mean(range(31, 41))  # the last quarter
    assert (curve[STEPS].lowest, curve[STEPS].highest) == (11, 21)


def test_the_papers_arrangement() -> None:
    results = study(rates=(1.0, 0.5, 0.25)) + study(("beam_rider", "space_invaders"))
    figure = draw_players(results)
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
    # The weak device's panel ends with its own steps, though it was alone for longer.
    assert panels[f"(f) breakout: weak{quarter}"].get_xlim()[1] == pytest.approx(10)
    for panel in panels.values():
        assert [line.get_label() for line in panel.lines] == list(SETTINGS)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(SETTINGS)


def test_what_there_is_not_is_left_out() -> None:
    figure = draw_players(study(rates=(0.5,), settings=("isolated", "heterogeneous")))
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == [
        "(a) breakout: powerful, $v_{weak} = 0.5$",
        "(b) breakout: weak, $v_{weak} = 0.5$",
    ]
    assert [line.get_label() for line in figure.axes[0].lines] == ["isolated", "heterogeneous"]


def test_each_mode_has_its_figure(tmp_path: Path) -> None:
    results = study(modes=("sync", "async"), rates=(1.0, 0.5))
    written = draw_figures(results, tmp_path)
    assert [file.name for file in written] == [
        "rl.png", "rl.svg", "rl_async.png", "rl_async.svg", "table.md",
    ]  # fmt: skip
    assert all(file.stat().st_size for file in written)


def test_the_table_of_players() -> None:
    lines = players_table(study(modes=("async",), rates=(0.5,))).markdown().splitlines()
    # Alone and powerful: 40 rounds, the last quarter of which are 31 … 40, on average 35.5.
    assert lines[0] == (
        "| game | coordinator | rate of weak | device | isolated | homogeneous | heterogeneous |"
    )
    assert lines[3] == (
        "| breakout | async | 0.5 | powerful | 150.5 (145.5–155.5) | 160.5 (155.5–165.5) | "
        "170.5 (165.5–175.5) |"
    )
    # The weak one has 20 rounds, alone too: the last quarter is 16 … 20, on average 18.
    assert lines[2].endswith("| weak | 33.0 (28.0–38.0) | 43.0 (38.0–48.0) | 53.0 (48.0–58.0) |")
    assert lines[-1] == (
        "atari: mean score of the tests in the last 25% of the steps, median (lowest–highest) of "
        "3 seeds; 40 rounds of 1000 steps, warm-up 1, exploration 1, replay 9 and 9 steps; engine "
        "tflite; commit 0123456789ab."
    )


def test_who_is_alone_is_in_the_table_of_every_rate() -> None:
    found = [row[2:5] for row in players_table(study(rates=(1.0, 0.25))).rows]
    assert found == [
        ("1", "weak", "50.5 (45.5–55.5)"),
        ("1", "powerful", "150.5 (145.5–155.5)"),
        ("0.25", "weak", "50.5 (45.5–55.5)"),  # its rounds are shorter, and as many
        ("0.25", "powerful", "150.5 (145.5–155.5)"),
    ]
