"""Where a reader of lines goes on after a stop, so that the windows are those of a straight run.

A position names the line at which the next window begins, not the one that was read last: windows
overlap, or have samples between them. What a window takes from before a file cannot be read
again; then the position is that of the first window that is in this file alone.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker.durable import make_folder, write_file
from firmware_sim.sources.decoding.windows import Windows
from firmware_sim.sources.lines import Position
from firmware_sim.tensor_spec import Array

_LARGEST_NOTE = 2**20  # bytes


@dataclass(frozen=True)
class Resume:
    """Where to go on in a file, and in which state of its windows."""

    position: Position  # behind the last sample before the next window, or before those to skip
    skip: int = 0  # samples between that place and the next window
    held: tuple[float | None, ...] = ()  # the last value of each channel before, if it is held


class Progress:
    """Follows the samples of a file into its windows."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._ends: deque[int] = deque(maxlen=windows.length)  # offsets behind the last samples
        self._first = Resume(Position(0, 0))  # for as long as the next window began before the file

    def begin(self, position: Position, resume: Resume | None) -> None:
        """What comes next is at `position` of a file; `resume` is what was noted before a stop."""
        if resume is not None and resume.position == position:
            self._windows.resume(resume.skip, _numbers(resume.held, self._windows.channels))
        begun = self._windows.begun
        skip = -begun if begun <= 0 else -begun % self._windows.hop
        self._first = Resume(position, skip, _plain(self._windows.held(before=0)))
        self._ends.clear()
        self._ends.append(position.offset)

    def add(self, end: int) -> None:
        """A sample was added to the windows; its line ends at this offset."""
        self._ends.append(end)

    def resume(self) -> Resume:
        """Returns where a reader has to go on that is stopped now."""
        begun = self._windows.begun
        if begun >= len(self._ends):
            return self._first
        before = max(0, begun)
        position = Position(self._first.position.inode, self._ends[-1 - before])
        return Resume(position, max(0, -begun), _plain(self._windows.held(before=before)))


def write_note(file: Path, note: Resume) -> None:
    make_folder(file.parent)
    plain = {**vars(note.position), "skip": note.skip, "held": note.held}
    write_file(file, json.dumps(plain).encode())


def read_note(file: Path) -> Resume | None:
    """Returns what a state keeps; None if there is nothing, or it is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if file.stat().st_size <= _LARGEST_NOTE:
            note = json.loads(file.read_bytes())
            if isinstance(note, dict):
                return _checked({"skip": 0, "held": []} | note)
    return None


def _checked(note: dict[str, object]) -> Resume | None:
    match note:
        case {
            "inode": int(inode),
            "offset": int(offset),
            "skip": int(skip),
            "held": list(held),
        } if (
            min(inode, offset, skip) >= 0
            and max(inode, offset, skip) < 2**64
            and all(v is None or (type(v) in (int, float) and math.isfinite(v)) for v in held)
        ):
            return Resume(Position(inode, offset), skip, tuple(held))
    return None


def _plain(held: Array | None) -> tuple[float | None, ...]:
    if held is None:
        return ()
    return tuple(None if math.isnan(value) else float(value) for value in held)


def _numbers(held: tuple[float | None, ...], channels: int) -> Array | None:
    """Returns the values that were held, if they are as many as there are channels."""
    if len(held) != channels:
        return None
    return np.array([np.nan if value is None else value for value in held])
