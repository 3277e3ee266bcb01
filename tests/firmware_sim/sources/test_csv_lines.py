"""Lines of growing files, pipes and devices become windows with labels."""

from __future__ import annotations

import os
import pty
import re
import threading
import time
import tty
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from firmware_sim.errors import SourceError
from firmware_sim.sources import csv_lines
from firmware_sim.sources.csv_lines import CsvSource
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import CsvSettings
from firmware_sim.sources.source import LateLabel, Malformed, Observation
from firmware_sim.tensor_spec import TensorSpec

X = TensorSpec((2, 3), np.dtype(np.float32))
CLASS = TensorSpec((), np.dtype(np.int32))
WANTED = Request(x=X, y=CLASS, outputs=4)
Event = Observation | LateLabel | Malformed


def next_event(events: Iterator[Event | None]) -> Event:
    deadline = time.monotonic() + 20
    for event in events:
        if event is not None:
            return event
        assert time.monotonic() < deadline
    raise AssertionError("the source has ended")


def all_of(file: Path, request: Request = WANTED, **settings: object) -> list[Event]:
    source = CsvSource(str(file), CsvSettings(follow=False, **settings), request)  # type: ignore[arg-type]
    return [event for event in source.events() if event is not None]


def observation(event: Event) -> Observation:
    assert isinstance(event, Observation), event
    return event


def test_a_header_and_a_label_column_need_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text('ax,"ay",label,az\n1,2,3,4\n5,6,2,7\n\n8,9,,10\n11,12,,13.5\n')
    first, second = map(observation, all_of(file))
    assert first.x.tolist() == [[1, 2, 4], [5, 6, 7]]
    assert (first.x.dtype, first.y) == (np.float32, 2)
    assert second.x.tolist() == [[8, 9, 10], [11, 12, 13.5]]
    assert second.y is None


def test_lines_without_a_header_have_the_label_last(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b"1;2;4;idle\r\n5;6;7;run\r\n1;1;1;idle\r\n2;2;2;idle")
    first, second = map(observation, all_of(file, separator=";"))
    assert (first.x.tolist(), first.y) == ([[1, 2, 4], [5, 6, 7]], 1)
    assert (second.x.tolist(), second.y) == ([[1, 1, 1], [2, 2, 2]], 0)


def test_named_columns_in_the_order_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("".join(f"{n},{n + 1},{n + 2},{n % 3},x\n" for n in range(4)))
    names, columns = ("t", "a", "b", "state", "note"), ("b", "a", "t")
    found = all_of(file, names=names, columns=columns, labels=("state",), hop=1, label_of="mean")
    assert [observation(o).x[0].tolist() for o in found] == [[2, 1, 0], [3, 2, 1], [4, 3, 2]]
    assert [observation(o).y for o in found] == [0, 1, 1]


def test_bad_lines_are_told_and_skipped(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    lines = [b"a,b,c,label", b"1,2,3,0", b"1,2", b"1,x,3,0", b"\xff\xfe,1", b"1,2,inf,0"]
    lines += [
        b"9" * 70_000,
        b"1,2,3,9",
        b"1,2,3,-1",
        b"1,2,3,1_0",
        b"4,5,6,1",
        b"1,,2,0",
        b"1,2,3,0",
    ]
    file.write_bytes(b"\n".join(lines) + b"\n")
    found = all_of(file)
    assert [e.reason if isinstance(e, Malformed) else e.x.tolist() for e in found] == [  # type: ignore[union-attr]
        "a line has 2 columns instead of 4.",
        "'x' is not a number.",
        "a line is too long, or no text.",
        "'inf' is not a number.",
        "a line is too long, or no text.",
        "the label 9 is not a class from 0 to 3.",
        "the label -1 is not a class from 0 to 3.",
        "the label '1_0' is a name, and those before were numbers.",
        [[1, 2, 3], [4, 5, 6]],
        "a window lacks 1 values.",
    ]


def test_numbers_as_targets(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,b,c,u,v\n1,2,3,0.5,7\n1,2,3,1.5,9\n1,2,3,warm,1\n")
    wanted = Request(x=X, y=TensorSpec((2,), np.dtype(np.float32)))
    columns, labels = ("a", "b", "c"), ("u", "v")
    last, bad = all_of(file, wanted, columns=columns, labels=labels)
    assert observation(last).y.tolist() == [1.5, 9]
    assert bad == Malformed("the label is not a finite number.")
    mean = all_of(file, wanted, columns=columns, labels=labels, label_of="mean")[0]
    assert observation(mean).y.tolist() == [1, 8]


def test_a_class_for_each_position(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,b,c,label\n1,2,3,0\n1,2,3,3\n")
    wanted = Request(x=X, y=TensorSpec((2,), np.dtype(np.int32)), outputs=4)
    (found,) = all_of(file, wanted)
    assert observation(found).y.tolist() == [0, 3]
    assert observation(found).y.dtype == np.int32


def test_whole_numbers_for_a_bundle_of_pixels(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("0,255\n1,256\n1.5,2\n")
    wanted = Request(x=TensorSpec((2,), np.dtype(np.uint8)))
    good, large, broken = all_of(file, wanted)
    assert observation(good).x.tolist() == [0, 255]
    assert large == broken == Malformed("a window has numbers that are no uint8.")


@pytest.mark.parametrize(
    ("content", "settings", "problem"),
    [
        ("a,b,label\n1,2,0\n", {}, "takes 3 columns, and the source has 2 (a, b)"),
        ("a,b,c\n1,2,0\n", {"columns": ("a", "b", "d")}, "no column 'd'; it has a, b, c"),
        ("a,a,b,c\n", {"columns": ("a", "b", "c")}, "more than one column 'a'"),
        ("a,b,c\n", {"columns": ("a", "b")}, "2 samples of 2 channels does not fill it"),
        ("a,b,c,d,e\n", {"labels": ("d", "e")}, "name 2 labels (d, e); the bundle takes 1"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    tmp_path: Path, content: str, settings: dict[str, object], problem: str
) -> None:
    file = tmp_path / "data.csv"
    file.write_text(content)
    with pytest.raises(SourceError, match=re.escape(problem)):
        all_of(file, WANTED, **settings)


def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    for place in ("", str(tmp_path), str(tmp_path / "none" / "data.csv")):
        with pytest.raises(SourceError):
            CsvSource(place, CsvSettings(), WANTED)


def test_a_file_that_grows_is_cut_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    source = CsvSource(str(file), CsvSettings(), Request(x=TensorSpec((1,), X.dtype)))
    events = source.events()
    assert next(events) is None  # it waits for the file
    with file.open("w") as lines:
        lines.write("value\n1\n2")
    assert observation(next_event(events)).x.tolist() == [1]
    with file.open("a") as lines:
        lines.write("5\n3\n")  # the line was not complete
    assert observation(next_event(events)).x.tolist() == [25]
    assert observation(next_event(events)).x.tolist() == [3]
    assert next(events) is None
    file.write_text("7\n")  # cut, without a header this time
    assert observation(next_event(events)).x.tolist() == [7]
    assert next(events) is None
    file.rename(tmp_path / "data.csv.1")
    with (tmp_path / "data.csv.1").open("a") as lines:
        lines.write("8\n")  # the last words to the old file
    assert observation(next_event(events)).x.tolist() == [8]
    file.write_text("value\n9\n")
    assert observation(next_event(events)).x.tolist() == [9]
    source.close()
    assert [event for event in events if event is not None] == []


def test_a_file_is_read_to_its_end_when_another_takes_its_name(tmp_path: Path) -> None:
    file, old = tmp_path / "data.csv", tmp_path / "data.csv.1"
    file.write_text("value\n1\n")
    source = CsvSource(str(file), CsvSettings(), Request(x=TensorSpec((1,), X.dtype)))
    events = source.events()
    assert observation(next_event(events)).x.tolist() == [1]
    assert next(events) is None  # it has seen the end, and waits
    with file.open("a") as lines:
        lines.write("2\n")
        file.rename(old)
        file.touch()
        lines.write("3\n")
        lines.flush()
        assert [observation(next_event(events)).x.item() for _ in range(2)] == [2, 3]
        for _ in range(2):
            assert next(events) is None  # the new file is there, and nothing is in it
        lines.write("4\n")
    file.write_text("value\n5\n")
    assert [observation(next_event(events)).x.item() for _ in range(2)] == [4, 5]
    source.close()


def test_a_device_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("b,a\n" + "".join(f"{n},{n + 0.5}\n" for n in range(6)))
    wanted = Request(x=TensorSpec((2,), X.dtype), memory=tmp_path / "state" / "source")
    settings = CsvSettings(columns=("a", "b"))
    source = CsvSource(str(file), settings, wanted)
    events = source.events()
    assert [observation(next_event(events)).x[1] for _ in range(3)] == [0, 1, 2]
    assert next_event(events)  # whoever asks for the fourth has stored the third
    source.close()
    list(events)  # that is the end of the fourth
    with file.open("a") as lines:
        lines.write("6,6.5\n")
    again = CsvSource(str(file), settings, wanted).events()
    assert [observation(next_event(again)).x.tolist() for _ in range(3)] == [
        [4.5, 4],
        [5.5, 5],
        [6.5, 6],
    ]
    other = Request(x=wanted.x, memory=tmp_path / "other")
    late = CsvSource(str(file), CsvSettings(columns=("a", "b"), begin="end"), other).events()
    assert next(late) is None
    with file.open("a") as lines:
        lines.write("7,7.5\n")
    assert observation(next_event(late)).x.tolist() == [7.5, 7]


def test_what_a_kill_makes_it_read_again_has_the_same_key(tmp_path: Path) -> None:
    """And what stands at the same place of a file that was cut has another one."""
    file = tmp_path / "data.csv"
    wanted = Request(x=TensorSpec((2,), X.dtype), memory=tmp_path / "never written")

    def keys(first: int) -> list[str]:
        file.write_text("a,b\n" + "".join(f"{n},{n}\n" for n in range(first, first + 4)))
        return [observation(event).key for event in all_of(file, wanted)]

    def forget() -> None:  # as if it was killed before it noted how far it was
        for note in wanted.memory.iterdir() if wanted.memory else []:
            note.unlink()

    before = keys(0)
    forget()
    assert keys(0) == before
    forget()
    assert len({*before, *keys(3)}) == 8
    nameless = Request(x=wanted.x)
    assert {observation(event).key for event in all_of(file, nameless)} == {""}


@pytest.mark.parametrize(("window", "hop"), [(4, 4), (4, 3), (4, 1), (3, 5), (1, 3)])
@pytest.mark.parametrize("stop", ["kill", "stop"])
def test_windows_after_a_stop_are_those_of_a_straight_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, hop: int, stop: str
) -> None:
    monkeypatch.setattr(csv_lines, "KEEP_S", 0.0)
    file = tmp_path / "data.csv"
    lines = [f"{n},{n if n % 4 == 0 else ''}" for n in range(40)]
    lines.insert(7, "bad")
    file.write_text("\n".join(("a,b", *lines)) + "\n")
    settings = CsvSettings(follow=False, window=window, hop=hop, missing="hold")

    def events(memory: str) -> tuple[CsvSource, Iterator[Event | None]]:
        wanted = Request(x=TensorSpec((window, 2), X.dtype), memory=tmp_path / memory)
        source = CsvSource(str(file), settings, wanted)
        return source, source.events()

    def shown(found: Iterable[Event | None]) -> list[tuple[str, object]]:
        return [(o.key, o.x.tolist()) for o in found if isinstance(o, Observation)]

    straight = shown(events("straight")[1])
    assert len(straight) == (40 - window) // hop + 1
    stored: list[tuple[str, object]] = []
    for _ in range(60):  # each run is stopped after its third event
        source, found = events("stopped")
        few = list(islice(found, 3))
        if not few:
            break
        stored += shown(few)
        if stop == "stop":
            source.close()
            assert list(found) == []
    assert [one for at, one in enumerate(stored) if one not in stored[:at]] == straight


def test_windows_in_a_new_file_keep_their_phase_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    wanted = Request(x=TensorSpec((3, 1), X.dtype), memory=tmp_path / "state")
    settings = CsvSettings(hop=2)
    file.write_text("1\n2\n3\n4\n")
    source = CsvSource(str(file), settings, wanted)
    events = source.events()
    assert observation(next_event(events)).x[:, 0].tolist() == [1, 2, 3]
    assert next(events) is None
    file.rename(tmp_path / "data.csv.1")
    file.write_text("5\n")
    assert observation(next_event(events)).x[:, 0].tolist() == [3, 4, 5]
    source.close()
    list(events)
    with file.open("a") as lines:
        lines.write("6\n7\n8\n9\n")
    again = CsvSource(str(file), settings, wanted).events()
    assert observation(next_event(again)).x[:, 0].tolist() == [5, 6, 7]
    assert observation(next_event(again)).x[:, 0].tolist() == [7, 8, 9]


def test_a_pipe_whose_writers_come_and_go(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = CsvSource(str(pipe), CsvSettings(), Request(x=TensorSpec((2, 1), X.dtype)))
    events = source.events()
    assert next(events) is None
    for numbers, window in (((1, 2, 3), [1, 2]), ((4, 5), [4, 5])):  # 3 and 4 do not follow
        text = "".join(f"{number}\n" for number in numbers)
        writer = threading.Thread(target=pipe.write_text, args=(text,))
        writer.start()
        assert observation(next_event(events)).x[:, 0].tolist() == window
        writer.join()
        assert next(events) is None  # the writer has gone
    source.close()


def test_a_serial_device_is_joined_in_the_middle_of_a_line() -> None:
    controller, device = pty.openpty()
    tty.setraw(device)
    source = CsvSource(os.ttyname(device), CsvSettings(), Request(x=TensorSpec((2,), X.dtype)))
    events = source.events()
    assert next(events) is None
    os.write(controller, b"345,1\n2,3\r\n4,5\r\n")
    assert observation(next_event(events)).x.tolist() == [2, 3]
    assert observation(next_event(events)).x.tolist() == [4, 5]
    os.close(device)
    os.close(controller)
    assert next(events) is None  # it waits for the device to come back
    source.close()


def test_waiting_takes_no_processor_time_and_ends_at_once(tmp_path: Path) -> None:
    source = CsvSource(str(tmp_path / "none.csv"), CsvSettings(), WANTED)
    came: list[object] = []
    thread = threading.Thread(target=lambda: came.extend(source.events()))
    before = time.process_time()
    thread.start()
    time.sleep(1.0)
    source.close()
    thread.join(5)
    assert not thread.is_alive()
    assert time.process_time() - before < 0.5
    assert 1 <= len(came) < 50
    assert set(came) == {None}
