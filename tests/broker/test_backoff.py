"""How long a service waits after failures, counted over its starts and ends."""

import os
from pathlib import Path

import pytest

from broker.backoff import count_end, failures_in, main, seconds_to_wait


def test_the_wait_doubles_up_to_five_minutes() -> None:
    waits = [seconds_to_wait(failures) for failures in (0, 1, 2, 3, 6, 7, 8, 10**9)]
    assert waits == [0, 5, 10, 20, 160, 300, 300, 300]


def test_failures_in_a_row_are_counted_and_a_good_run_ends_the_row(tmp_path: Path) -> None:
    file = tmp_path / "failures"
    now = 1e9
    for wanted in (1, 2, 3):
        assert count_end(file, failed=True, now=now) == wanted
        os.utime(file, (now, now))  # it starts again at once
    assert count_end(file, failed=True, now=now + 599) == 4
    os.utime(file, (now, now))
    assert count_end(file, failed=True, now=now + 601) == 1
    assert count_end(file, failed=False, now=now + 602) == 0
    assert failures_in(file) == 0


def test_it_believes_what_systemd_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "failures"
    main(["wait", str(file)])
    assert failures_in(file) == 0
    for result, wanted in (("watchdog", 1), ("exit-code", 2), ("success", 0)):
        monkeypatch.setenv("SERVICE_RESULT", result)
        main(["ended", str(file)])
        assert failures_in(file) == wanted


def test_a_damaged_count_is_none(tmp_path: Path) -> None:
    file = tmp_path / "failures"
    for text in ("", "x", "-4"):
        file.write_text(text, encoding="ascii")
        assert failures_in(file) == 0


def test_other_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["sleep"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ")
