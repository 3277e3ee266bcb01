"""Remote text cannot command a terminal, forge a line of a log, or flood either."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import StemshareError
from profiles.text import LONGEST, printable, printable_inside


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pi-1", "pi-1"),
        ("θ_shared · Grüße, 日本", "θ_shared · Grüße, 日本"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("one\r\ntwo\x00\x7f\x9b", r"one\r\ntwo\x00\x7f\x9b"),
        ("evil\u202egnp.exe\u2066", r"evil\u202egnp.exe\u2066"),
        ("zero\u200bwidth\ufeff\u2028line", r"zero\u200bwidth\ufeff\u2028line"),
        ("half a pair \ud800", r"half a pair \ud800"),
        ("\U000e0041tag", r"\U000e0041tag"),
        ("", ""),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert printable("x" * LONGEST) == "x" * LONGEST
    assert printable("x" * (LONGEST + 1)) == "x" * LONGEST + "…"
    assert printable("\x1bxyz", 2) == r"\x1bx…"


@given(st.text(max_size=200))
def test_any_text_becomes_one_line_without_controls(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown


def test_every_text_in_a_value_is_made_printable() -> None:
    value = {"a\x1b": ["\n", ("\u202e", 1)], "b": 0.5, "c": None, "d": {"e": "\x07"}}
    shown = {r"a\x1b": [r"\n", [r"\u202e", 1]], "b": 0.5, "c": None, "d": {"e": r"\x07"}}
    assert printable_inside(value) == shown


def test_the_report_of_an_error_is_one_printable_line() -> None:
    error = StemshareError("the aggregator refused this device: \x1b[31mno\nerror: forged")
    assert error.report == r"error: the aggregator refused this device: \x1b[31mno\nerror: forged"
