"""Figures and tables from results alone, with numbers that can be worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ANY, SETTINGS
from toolkit.experiment.figures.arms import ALIKE, ALONE, Arm
from toolkit.experiment.figures.draw import draw_figures
from toolkit.experiment.figures.drawing import style_of
from toolkit.experiment.figures.median_range import MedianRange
from toolkit.experiment.figures.study_tables import StudyTables, study_tables
from toolkit.experiment.figures.supervised_figure import draw_study
from toolkit.experiment.figures.supervised_summary import (
    SupervisedResult,
    final_scores,
    learning_curves,
)
from toolkit.experiment.running.results import Result
from toolkit.experiment.scores import Final, Point
from toolkit.experiment.supervised.cell import TOPOLOGIES, SupervisedOptions, plan

LEVEL = {"isolated": 0.5, "homogeneous": 0.6, "heterogeneous": 0.7}
BETTER = {"cascading": 0.01, "two-loss": 0.02}
FRACTIONS = (0.1, 0.25)
ARMS = ["isolated", "homogeneous", *TOPOLOGIES]
ALONE_TOO = ["isolated, cascading", "isolated, two-loss"]


def accuracy(setting: str, topology: str, device: str, fraction: float, seed: int) -> float:
    """Its own for each cell, and linear in the seed."""
    better = 0.05 * (device == "powerful") + BETTER.get(topology, 0)
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


def tables(results: Sequence[SupervisedResult]) -> StudyTables:
    (found,) = study_tables(results)
    return found


def test_accuracies_of_every_arm_by_seed() -> None:
    powerful = final_scores(study(), "powerful", 0.1)
    assert [arm.name for arm in powerful] == ARMS + ALONE_TOO
    assert powerful[ALONE] == pytest.approx({0: 56, 1: 57, 2: 58})  # of its plain network
    assert powerful[Arm("isolated", "two-loss")][0] == pytest.approx(58)
    weak = final_scores(study(), "weak", 0.1)
    assert [arm.name for arm in weak] == ARMS
    assert weak[Arm("heterogeneous", "cascading")] == pytest.approx({0: 72, 1: 73, 2: 74})


def test_a_curve_has_the_rounds_that_all_seeds_have() -> None:
    results = study()
    curve = learning_curves(results, "weak", 0.1)[ALIKE]
    assert list(curve) == [0, 2, 4]
    assert curve[4].median == pytest.approx(62)
    assert [curve[4].lowest, curve[4].highest] == pytest.approx([61, 63])
    assert curve[2].median == pytest.approx(curve[4].median / 2)
    first = next(r for r in results if r.cell.setting == "homogeneous")
    first.points[:] = [point for point in first.points if point.round < 4]
    assert list(learning_curves(results, "weak", first.cell.weak_fraction)[ALIKE]) == [0, 2]
    assert learning_curves(results, "weak", 0.3) == {}


def test_the_study_has_the_papers_panels_with_all_arms() -> None:
    figure = draw_study(study(ablation=True))
    panels = figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == [
        "(a) powerful: best version",
        "(b) weak: best version",
        "(c) powerful with 75 % of the data",
        "(d) weak with 25 % of the data",
    ]
    fleets = ["share-first", "cascading", "cascading, no branch dropout", "two-loss"]
    arms = ["isolated", "homogeneous", *fleets, *ALONE_TOO]
    for panel in panels:
        weak = "weak" in panel.get_title(loc="left")
        assert [line.get_label() for line in panel.lines] == (arms[:-2] if weak else arms)
    lines = {line.get_label(): line for line in panels[0].lines}
    np.testing.assert_allclose(lines["cascading"].get_ydata(), [78, 79.5])
    dropped = lines["cascading, no branch dropout"].get_ydata()
    np.testing.assert_allclose(dropped, [58, 59.5])
    places = [line.get_xdata()[0] for line in lines.values()]  # side by side, left to right
    assert places == sorted(set(places)) and -0.5 < places[0] < places[-1] < 0.5  # type: ignore[type-var]
    bars = panels[0].collections[arms.index("cascading")].get_segments()
    np.testing.assert_allclose(np.array(bars)[:, :, 1], [[77.0, 79.0], [78.5, 80.5]])
    assert [text.get_text() for text in panels[0].get_xticklabels()] == ["90", "75"]
    assert [text.get_text() for text in panels[1].get_xticklabels()] == ["10", "25"]
    assert panels[2].get_ylim() == panels[3].get_ylim()
    drawn = [style_of(arm) for arm in final_scores(study(ablation=True), "powerful", 0.1)]
    assert len({(style["color"], style["linestyle"]) for style in drawn}) == len(arms)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == arms
    assert all(line.get_marker() for line in legend.get_lines())


def test_the_tables() -> None:
    found = tables(study(topologies=["two-loss"]))
    assert str(found.scores).splitlines() == [
        "| device | holds | isolated | homogeneous | two-loss | isolated, two-loss | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| weak | 10 % | 52.0 ± 0.6 | 62.0 ± 0.6 | 74.0 ± 0.6 | – | 3 |",
        "| weak | 25 % | 53.5 ± 0.6 | 63.5 ± 0.6 | 75.5 ± 0.6 | – | 3 |",
        "| powerful | 90 % | 57.0 ± 0.6 | 67.0 ± 0.6 | 79.0 ± 0.6 | 59.0 ± 0.6 | 3 |",
        "| powerful | 75 % | 58.5 ± 0.6 | 68.5 ± 0.6 | 80.5 ± 0.6 | 60.5 ± 0.6 | 3 |",
        "",
        "digits, iid: test accuracy in percent of the version that validated best, mean ± standard "
        "error of 3 seeds; 4 rounds of 2000 examples, merged by samples; engine tf; commit "
        "0123456789ab.",
    ]
    differences = str(found.differences).splitlines()
    assert differences[-3] == (
        "| powerful | 75 % | isolated, two-loss | **+2.00 ± 0.00** | **-8.00 ± 0.00** | 3 |"
    )
    assert len(differences) == 2 + 2 * 2 + 2 * 3 + 2


def test_the_terminals_table_is_readable_at_100_columns() -> None:
    """No entry is broken, whatever was run."""
    console = Console(width=100, file=StringIO())
    console.print(tables(study(seeds=2, ablation=True)).for_terminal())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("digits, iid: test accuracy in percent")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert len(rows) == 2 * (1 + 6 + 1 + 8)
    assert rows[0] == ["weak, 10 %", "", "", "", ""]
    assert rows[1] == ["isolated", "51.5 ± 0.5", "", "", "2"]
    assert rows[2] == ["homogeneous", "61.5 ± 0.5", "+10.00 ± 0.00 *", "", "2"]
    long = "cascading, no branch dropout"
    assert rows[5] == [long, "52.5 ± 0.5", "+1.00 ± 0.00 *", "-9.00 ± 0.00 *", "2"]
    assert " ".join(lines[-1].split()).endswith("seeds; *: more than 2 standard errors (s.e.)")


def test_places_that_are_all_the_same_are_not_named_in_a_terminal() -> None:
    results = [r for r in study(seeds=1) if r.cell.weak_fraction == 0.1]
    table = tables(results).for_terminal()
    assert table.columns[0].header == "device, holds"
    for result in results:
        result.finals.pop("powerful", None)
    table = tables(results).for_terminal()
    assert [table.columns[0].header, *table.columns[0].cells][:2] == ["", "isolated"]


def test_commits_are_all_named() -> None:
    results = study(seeds=2)
    results[-1].header["commit"] = "fedcba98765"
    assert tables(results).scores.caption.endswith("commits 0123456789ab, fedcba98765")


def test_a_study_of_one_setting(tmp_path: Path) -> None:
    results = [r for r in study() if r.cell.topology == ANY and r.cell.setting == "homogeneous"]
    written = draw_figures(results, tmp_path)
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| weak | 10 % | 62.0 ± 0.6 | 3 |" in table
    assert "isolated" not in table and "differences" not in table
    assert [file.name for file in written] == ["supervised.png", "supervised.svg", "table.md"]


def test_every_file_is_written(tmp_path: Path) -> None:
    written = draw_figures(study(ablation=True), tmp_path)
    assert sorted(file.name for file in written) == ["supervised.png", "supervised.svg", "table.md"]
    for file in written:
        head = file.read_bytes()[:200]
        assert file.suffix != ".png" or head.startswith(b"\x89PNG")
        assert file.suffix != ".svg" or b"<?xml" in head


def test_nothing_finished_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        draw_figures([], tmp_path)
    assert str(caught.value) == "no cell is finished yet, so there is nothing to draw."


def test_median_and_range() -> None:
    assert MedianRange.of([0.1, 0.5, 0.25, 0.25]) == MedianRange(0.25, 0.1, 0.5)


def with_errors(results: Sequence[SupervisedResult], key: str) -> list[SupervisedResult]:
    """The same study, in which the error is 1 - accuracy, in hundredths."""

    def error(scores: Mapping[str, float]) -> dict[str, float]:
        return dict.fromkeys([key], (1 - scores["test_accuracy"]) / 100) if scores else {}

    return [
        replace(
            result,
            points=[Point(p.device, p.round, error(p.scores)) for p in result.points],
            finals={d: Final(d, error(f.scores)) for d, f in result.finals.items()},
        )
        for result in results
    ]


@pytest.mark.parametrize(
    ("key", "named"),
    [("test_rmse", "test RMSE"), ("test_reconstruction_error", "test reconstruction error")],
)
def test_errors_have_their_own_axis_and_digits(key: str, named: str) -> None:
    results = with_errors(study(), key)
    figure = draw_study(results)
    assert figure.axes[0].get_ylabel() == f"{named} (lower is better)"
    found = tables(results)
    assert f": {named} (lower is better) of the version that validated best" in found.caption
    row = next(row for row in found.scores.rows if row[:2] == ("weak", "10 %"))
    assert row[2] == "0.00480 ± 0.00006"  # isolated: 1 - 0.52 in the mean, in hundredths
    lines = [row for row in found.differences.rows if row[:3] == ("weak", "10 %", "two-loss")]
    assert lines[0][3] == "**-0.002200 ± 0.000000**"


def test_accuracies_and_errors_are_not_shown_together() -> None:
    mixed = [*study(seeds=1), *with_errors(study(seeds=1), "test_rmse")]
    with pytest.raises(ExperimentError) as caught:
        draw_study(mixed)
    assert str(caught.value) == (
        "these results are measured in different ways, and cannot be shown together."
    )
