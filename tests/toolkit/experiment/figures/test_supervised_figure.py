"""Figures and tables from results alone, with numbers that can be worked out by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ANY, SETTINGS
from toolkit.experiment.figures.draw import draw_figures
from toolkit.experiment.figures.median_range import MedianRange
from toolkit.experiment.figures.supervised_figure import draw_ablation, draw_study
from toolkit.experiment.figures.supervised_summary import (
    Line,
    SupervisedResult,
    final_accuracies,
    learning_curve,
)
from toolkit.experiment.figures.supervised_table import supervised_table
from toolkit.experiment.running.results import Result
from toolkit.experiment.scores import Final, Point
from toolkit.experiment.supervised.cell import CASCADING, SHARE_FIRST, SupervisedOptions, plan

LEVEL = {"isolated": 0.5, "homogeneous": 0.6, "heterogeneous": 0.7}
FRACTIONS = (0.1, 0.25)
TOPOLOGIES = (SHARE_FIRST, CASCADING)


def accuracy(setting: str, topology: str, device: str, fraction: float, seed: int) -> float:
    """Its own for each cell, and linear in the seed."""
    better = 0.05 * (device == "powerful") + 0.01 * (topology == "cascading")
    return LEVEL[setting] + better + fraction / 10 + seed / 100


def study(
    topologies: Sequence[str] = TOPOLOGIES, *, ablation: bool = False, seeds: int = 3
) -> list[SupervisedResult]:
    options = SupervisedOptions(task="digits", rounds=4, test_every=2)
    cells = plan(
        options,
        settings=SETTINGS,
        topologies=topologies,
        weak_fractions=FRACTIONS,
        seeds=range(seeds),
        branch_dropout=(True, False) if ablation else (True,),
    )
    results = []
    for cell in cells:
        found = {
            d: accuracy(cell.setting, cell.topology, d, cell.weak_fraction, cell.seed)
            - (0 if cell.branch_dropout else 0.2)
            for d in cell.devices
        }
        points = [
            Point(d, r, {"test_accuracy": found[d] * r / 4} if r % 2 == 0 else {})
            for d in cell.devices
            for r in range(5)
        ]
        finals = {d: Final(d, {"test_accuracy": value}) for d, value in found.items()}
        results.append(Result(cell, {"commit": "0123456789abcdef"}, points, finals, 1.0))
    return results


def test_medians_and_extremes_over_seeds() -> None:
    found = final_accuracies(study(), Line("heterogeneous", "cascading", "powerful"))
    assert list(found) == list(FRACTIONS)
    assert found[0.1].median == pytest.approx(78)  # 70 + 5 + 1 + 1, and seed 1 of 0, 1, 2
    assert [found[0.1].lowest, found[0.1].highest] == pytest.approx([77, 79])
    assert found[0.25].seeds == 3


def test_what_no_topology_changes_is_in_every_panel() -> None:
    results = study()
    for line in (("homogeneous", "weak"), ("homogeneous", "powerful"), ("isolated", "weak")):
        shown = [final_accuracies(results, Line(line[0], t, line[1])) for t in TOPOLOGIES]
        assert shown[0] == shown[1] != {}
    powerful = [final_accuracies(results, Line("isolated", t, "powerful")) for t in TOPOLOGIES]
    assert powerful[1][0.1].median - powerful[0][0.1].median == pytest.approx(1)


def test_a_curve_has_the_rounds_that_all_seeds_have() -> None:
    results = study()
    line = Line("homogeneous", "cascading", "weak")
    curve = learning_curve(results, line, 0.1)
    assert list(curve) == [0, 2, 4]
    assert curve[2].median == pytest.approx(curve[4].median / 2)
    first = next(r for r in results if line.shows(r) and r.cell.weak_fraction == 0.1)
    first.points[:] = [point for point in first.points if point.round < 4]
    assert list(learning_curve(results, line, 0.1)) == [0, 2]
    assert learning_curve(results, line, 0.3) == {}


def test_the_study_has_the_papers_panels() -> None:
    figure = draw_study(study())
    panels = [panel for panel in figure.axes if panel.axison]
    titles = [panel.get_title(loc="left") for panel in panels]
    assert titles == [
        "(a) share first layers: powerful",
        "(b) share first layers: weak",
        "(c) cascading: powerful",
        "(d) cascading: weak",
        "(e) powerful with 75 % of the data",
        "(f) weak with 25 % of the data",
    ]
    lines = {line.get_label(): line for line in panels[2].lines}
    assert list(lines) == list(SETTINGS)
    np.testing.assert_allclose(lines["isolated"].get_ydata(), [58, 59.5])
    (band,) = (b for b in panels[2].collections if b.get_facecolor()[0, 2] > 0.6)  # the blue one
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(77), pytest.approx(80.5))
    assert [text.get_text() for text in panels[2].get_xticklabels()] == ["90", "75"]
    assert [text.get_text() for text in panels[3].get_xticklabels()] == ["10", "25"]
    assert len({panel.get_ylim() for panel in panels[:4]}) == 1
    (legend,) = (panel.get_legend() for panel in figure.axes if panel.get_legend())
    assert [text.get_text() for text in legend.get_texts()] == list(SETTINGS)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_topology_is_one_row(topology: str) -> None:
    figure = draw_study(study([topology]))
    assert [panel.get_title(loc="left")[:3] for panel in figure.axes] == [
        "(a)",
        "(b)",
        "(c)",
        "(d)",
    ]
    assert len(figure.legends) == 1


def test_the_ablation() -> None:
    results = study(ablation=True)
    figure = draw_ablation(results)
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "(a) cascading: powerful",
        "(b) cascading: weak",
    ]
    on, off = figure.axes[0].lines
    np.testing.assert_allclose(on.get_ydata() - off.get_ydata(), [20, 20])
    row = next(row for row in supervised_table(results).rows if row[:2] == ("cascading", "weak"))
    assert row[-2:] == ("73.0 (72.0–74.0)", "53.0 (52.0–54.0)")


def test_the_table() -> None:
    text = supervised_table(study(seeds=1, topologies=["cascading"])).markdown()
    assert text.splitlines() == [
        "| topology | device | holds | isolated | homogeneous | heterogeneous |",
        "| --- | --- | --- | --- | --- | --- |",
        "| cascading | weak | 10 % | 51.0 | 61.0 | 72.0 |",
        "| cascading | weak | 25 % | 52.5 | 62.5 | 73.5 |",
        "| cascading | powerful | 90 % | 57.0 | 66.0 | 77.0 |",
        "| cascading | powerful | 75 % | 58.5 | 67.5 | 78.5 |",
        "",
        "digits, iid: test accuracy in percent of the version that validated best, median "
        "(lowest–highest) of 1 seed; 4 rounds of 2000 examples; engine tf; commit 0123456789ab.",
    ]


def test_a_study_of_one_setting(tmp_path: Path) -> None:
    results = [r for r in study() if r.cell.topology == ANY and r.cell.setting == "homogeneous"]
    written = draw_figures(results, tmp_path)
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| any topology | weak | 10 % | – | 62.0 (61.0–63.0) | – |" in table
    assert [file.name for file in written] == ["supervised.png", "supervised.svg", "table.md"]


def test_every_file_is_written(tmp_path: Path) -> None:
    written = draw_figures(study(ablation=True), tmp_path)
    assert sorted(file.name for file in written) == [
        "branch_dropout.png",
        "branch_dropout.svg",
        "supervised.png",
        "supervised.svg",
        "table.md",
    ]
    for file in written:
        head = file.read_bytes()[:200]
        assert file.suffix != ".png" or head.startswith(b"\x89PNG")
        assert file.suffix != ".svg" or b"<?xml" in head


def test_nothing_finished_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        draw_figures([], tmp_path)
    assert str(caught.value) == "no cell is finished yet, so there is nothing to draw."


def test_median_and_range() -> None:
    found = MedianRange.of([0.1, 0.5, 0.25, 0.25])
    assert found == MedianRange(0.25, 0.1, 0.5, 4)
    assert (str(found), str(MedianRange.of([2]))) == ("0.2 (0.1–0.5)", "2.0")
