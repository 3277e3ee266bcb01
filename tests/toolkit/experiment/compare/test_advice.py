"""What a comparison prints: the table, the sentences, and commands to be given as they are."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.toolkit.experiment.compare.made_up import CASCADE, FIRST, PAIR, scores
from toolkit.experiment.compare.advice import commands, sentences, table
from toolkit.experiment.compare.decision import decide
from toolkit.experiment.compare.pair import ComparedPair
from toolkit.experiment.figures.arms import ALIKE, Arm
from toolkit.experiment.figures.shown import Shown

CLEAR = scores(
    [(70, 71, 72), (92, 93, 95), (75, 77, 77), (91, 92, 93)],
    [(98, 97, 98), (95, 94, 95), (98, 97, 98), (98, 98, 98)],
)


def test_a_row_for_each_setting() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(table(CLEAR, 0.05))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert rows == [
        ["isolated", "71.0 ± 0.6", "97.7 ± 0.3"],
        ["homogeneous", "93.3 ± 0.9", "94.7 ± 0.3"],
        ["share-first", "76.3 ± 0.7", "97.7 ± 0.3"],
        ["two-loss", "92.0 ± 0.6", "98.0 ± 0.0"],
    ]
    assert "weak, 5 % of the data" in lines[1]
    assert "powerful, 95 % of the data" in lines[1]


def test_what_to_use_and_what_speaks_against_the_others() -> None:
    assert sentences(decide(CLEAR), CLEAR) == (
        "Use two-loss (a cascade with a loss at both outputs): the weak device reaches 92.0 % "
        "instead of 71.0 % alone (+21.0 ± 0.0), the powerful one 98.0 % instead of 97.7 % alone "
        "(+0.3 ± 0.3, no clear difference). Homogeneous costs the powerful device 3.0 ± 0.0 "
        "points; share-first is 8.0 ± 0.0 points behind on the mean of both devices."
    )


def test_what_is_as_good_and_what_is_no_better_than_alone() -> None:
    found = scores(
        [(70, 71, 72), (90, 92, 92), (69, 73, 73), (90, 91, 93)],
        [(88, 89, 90), (90, 90, 92), (30, 90, 150), (92, 91, 92)],
    )
    assert sentences(decide(found), found).endswith(
        " Homogeneous does not differ from it clearly (+0.5 ± 0.3 points); share-first is not "
        "clearly better than training alone (weak +0.7 ± 0.9, powerful +1.0 ± 34.1)."
    )


def test_nothing_is_clearly_better() -> None:
    found = scores([(70, 71, 72), (90, 91, 92)], [(98, 97, 98), (96, 95, 96)])
    assert sentences(decide(found), found) == (
        "No setting is clearly better than training alone on one device without being clearly "
        "worse on the other. Differences from isolated: homogeneous weak +20.0 ± 0.0, powerful "
        "-2.0 ± 0.0."
    )


WEAK, POWERFUL = "toolkit export --profile weak", "toolkit export --profile powerful"


@pytest.mark.parametrize(
    ("arm", "pair", "expected"),
    [
        (ALIKE, PAIR, (f"{WEAK} --model my.py:weak", f"{POWERFUL} --model my.py:weak")),
        (CASCADE, PAIR, (f"{WEAK} --model my.py:weak",
                         f"{POWERFUL} --model my.py:strong --cascade my.py:weak")),
        (FIRST, PAIR, (f"{WEAK} --model my.py:weak --share stem1,stem2",
                       f"{POWERFUL} --model my.py:strong --share stem1,stem2")),
        (FIRST, replace(PAIR, share_common=True, weak_shares_all=False),
         (f"{WEAK} --model my.py:weak", f"{POWERFUL} --model my.py:strong")),
        (ALIKE, replace(PAIR, weak_shares_all=False),
         (f"{WEAK} --model my.py:weak --share all", f"{POWERFUL} --model my.py:weak --share all")),
        (CASCADE, replace(PAIR, weak_shares_all=False, weak="a b.py:weak"),
         (f"{WEAK} --model 'a b.py:weak' --share all",
          f"{POWERFUL} --model my.py:strong --cascade 'a b.py:weak' --share all")),
    ],
)  # fmt: skip
def test_commands_export_what_was_compared(
    arm: Arm, pair: ComparedPair, expected: tuple[str, str]
) -> None:
    assert tuple(commands(arm, pair)) == expected


def test_errors_are_said_with_their_name_and_digits() -> None:
    rmse = Shown("test_rmse", "test RMSE", of_difference="RMSE", lower_is_better=True)
    found = scores(
        [(0.05, 0.052), (0.03, 0.0316), (0.045, 0.0468)],
        [(0.02, 0.0212), (0.02, 0.0206), (0.02, 0.0212)],
    )
    said = sentences(decide(found, rmse), found, rmse)
    assert said == (
        "Use homogeneous (the weak network on all devices): the weak device reaches test RMSE "
        "0.0308 instead of 0.0510 alone (+0.0202 ± 0.0002 better), the powerful one test RMSE "
        "0.0203 instead of 0.0206 alone (+0.0003 ± 0.0003 better, no clear difference). "
        "Share-first is 0.0077 ± 0.0002 RMSE behind on the mean of both devices."
    )
