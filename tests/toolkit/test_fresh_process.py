"""A module in a process of its own: its report, or one sentence about its failure."""

import sys

import pytest

from toolkit.errors import ToolkitError
from toolkit.fresh_process import report_of


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_last_line_is_the_report() -> None:
    assert report_of(python("print('noise'); print('{\"a\": 1}')"), failure="no") == {"a": 1}
    assert report_of(python("pass"), failure="no") == {}


def test_a_failure_is_one_sentence_with_the_last_thing_said() -> None:
    with pytest.raises(ToolkitError, match=r"^it failed: too small$"):
        report_of(python("import sys; sys.exit('first\\nerror: too small')"), failure="it failed")
    with pytest.raises(ToolkitError, match=r"^it failed: no message$"):
        report_of(python("raise SystemExit(3)"), failure="it failed")
