"""Events are JSON lines for machines, and short lines with progress on a terminal."""

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

import pytest

from broker.log import PROGRESS_SECONDS, Log
from broker.protocol.messages import Reason


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_event_is_one_line_of_json() -> None:
    stream = io.StringIO()
    log = Log(stream)
    before = datetime.now(UTC)
    log.event("refused", device="pi-1", reason=Reason.LATE, round=3, loss=0.1, text='a "θ"')
    log.event("start")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    at = datetime.fromisoformat(first.pop("time"))
    assert abs((at - before).total_seconds()) < 60
    assert first == {
        "event": "refused",
        "device": "pi-1",
        "reason": "late",
        "round": 3,
        "loss": 0.1,
        "text": 'a "θ"',
    }
    assert second["event"] == "start"


def test_what_json_does_not_know_becomes_text() -> None:
    stream = io.StringIO()
    Log(stream, as_json=True).event("x", where=Terminal, tensors=("a", "b"))
    said = json.loads(stream.getvalue())
    assert said["tensors"] == ["a", "b"]
    assert "Terminal" in said["where"]


def test_remote_text_is_escaped_wherever_it_stands() -> None:
    remote = "\x1b[2Jno\nyes\u202e"
    fields = {"text": remote, "names": [remote], "where": Path(remote), "about": {remote: remote}}
    shown = r"\x1b[2Jno\nyes\u202e"
    stream = io.StringIO()
    Log(stream, as_json=True).event("ignored", **fields)
    said = json.loads(stream.getvalue())
    assert (said["text"], said["names"], said["where"]) == (shown, [shown], shown)
    assert said["about"] == {shown: shown}
    terminal = Terminal()
    Log(terminal).event("ignored", **fields)
    assert terminal.getvalue().removesuffix("\n").isprintable()
    assert f"  text={shown}  " in terminal.getvalue()


def test_a_terminal_gets_short_lines() -> None:
    stream = Terminal()
    Log(stream).event("merged", round=3, loss=0.123456789, devices=2)
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  merged        round=3  loss=0\.1235  devices=2\n", stream.getvalue()
    )


def test_progress_is_written_over_and_then_cleared() -> None:
    stream = Terminal()
    log = Log(stream)
    log.progress("step 1/2")
    log.progress("too soon after the first")
    sleep(PROGRESS_SECONDS)
    log.progress("step 2/2")
    log.event("trained")
    log.event("evaluated")
    text = stream.getvalue()
    assert text.startswith("\r\x1b[Kstep 1/2\r\x1b[Kstep 2/2\r\x1b[K")
    assert text.count("\n") == 2
    assert text.count("\x1b[K") == 3, "the second event has nothing to clear"


def test_progress_is_for_terminals_alone() -> None:
    stream = io.StringIO()
    Log(stream).progress("step 1/2")
    assert stream.getvalue() == ""
    terminal = Terminal()
    log = Log(terminal, as_json=True)
    log.progress("step 1/2")
    log.event("trained")
    assert json.loads(terminal.getvalue())["event"] == "trained"


def test_events_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Log().event("start")
    said = capsys.readouterr()
    assert (said.out, json.loads(said.err)["event"]) == ("", "start")


def test_an_ended_line_is_not_written_on() -> None:
    stream = Terminal()
    log = Log(stream)
    log.end_line()
    assert stream.getvalue() == "", "there is no line to end"
    log.progress("waiting")
    log.end_line()
    log.end_line()
    assert stream.getvalue() == "\r\x1b[Kwaiting\r\x1b[K"
