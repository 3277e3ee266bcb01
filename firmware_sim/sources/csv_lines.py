"""`csv:PATH` or `csv:-`: windows of the lines of a file, a pipe or a serial device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from firmware_sim.errors import SourceError
from firmware_sim.sources.decoding.csv_table import BadLine, Table
from firmware_sim.sources.decoding.windows import Window
from firmware_sim.sources.framing import Framing
from firmware_sim.sources.labels import NoLabel
from firmware_sim.sources.lines import IDLE_S, STDIN, Break, Line, Lines
from firmware_sim.sources.position import Progress, read_note, write_note
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import CsvSettings, read_settings
from firmware_sim.sources.source import LateLabel, Malformed, Observation

KEEP_S = 1.0  # between two notes of the position; a kill makes it read what came since again
POSITION_FILE = "position.json"


def open_csv(place: str, request: Request) -> CsvSource:
    """Opens what follows `csv:`."""
    return CsvSource(place, read_settings(CsvSettings, request.settings), request)


class CsvSource:
    """Reads on where it stopped, if the state remembers the file."""

    def __init__(self, place: str, settings: CsvSettings, request: Request) -> None:
        if not place:
            raise SourceError("csv: names no file; write csv:PATH, or csv:- for standard input.")
        if place != STDIN and (not Path(place).parent.is_dir() or Path(place).is_dir()):
            raise SourceError(f"{place} cannot be read as CSV: it is a folder, or in none.")
        self._framing = Framing(settings, request, len(settings.columns) or None)
        self._framing.check_labels(settings.labels)
        self._closing = threading.Event()
        self._note = None if request.memory is None else request.memory / POSITION_FILE
        self._kept = read_note(self._note) if self._note else None
        self._next_note = 0.0
        self._lines = Lines(
            place,
            self._closing,
            follow=settings.follow,
            resume=self._kept.position if self._kept else None,
            from_end=settings.begin == "end",
            waits=lambda reason: request.tell("source_waits", reason=reason),
        )
        self._table = Table(
            settings,
            self._framing.channels,
            self._framing.targets,
            may_name=not self._lines.is_device,
        )

    def events(self) -> Iterator[Observation | LateLabel | Malformed | None]:
        windows = self._framing.windows()
        progress, resume, said = Progress(windows), self._kept, time.monotonic()
        for found in self._lines.read():
            match found:
                case Line() as line:
                    event = None
                    try:
                        row = self._table.read(line.text)
                        if row is not None and not line.again:
                            window = windows.add(row.sample, self._framing.label(row.labels))
                            progress.add(line.end)
                            event = None if window is None else self._observation(window, line.end)
                    except (BadLine, NoLabel) as error:
                        event = None if line.again else Malformed(str(error))
                    if event is not None:
                        yield event
                        # Whoever asks for the next event has stored this one.
                        said = time.monotonic()
                        self._remember(progress)
                    elif time.monotonic() - said > IDLE_S:  # lines come, and no window yet
                        yield None
                        said = time.monotonic()
                case Break.NEW_FILE:
                    self._table.new_file()
                    progress.begin(self._lines.began, resume)
                    resume = None
                case Break.REOPENED:
                    windows.restart()
                case Break.BAD:
                    yield Malformed("a line is too long, or no text.")
                case None:
                    self._remember(progress)
                    yield None
        self._remember(progress, at_once=True)

    def close(self) -> None:
        self._closing.set()

    def _observation(self, window: Window, end: int) -> Observation | Malformed:
        """Returns the window with a key that it has again if a kill makes it read again.

        What is in it is part of the key: a file that was cut has other lines at the same places.
        """
        found = self._framing.observation(window)
        if self._note is None or not self._lines.inode or isinstance(found, Malformed):
            return found
        return replace(found, key=f"{self._lines.inode}/{end}/{crc32(found.x.tobytes())}")

    def _remember(self, progress: Progress, *, at_once: bool = False) -> None:
        """Notes where to go on after a stop, at most once a second."""
        now = time.monotonic()
        if self._note is None or not self._lines.inode or not (at_once or now >= self._next_note):
            return
        if (note := progress.resume()) != self._kept:
            write_note(self._note, note)
            self._kept, self._next_note = note, now + KEEP_S
