"""A pack that came over the broker is on trial until the device has finished a round with it.

Two small files beside the packs say so. `trial.json` is written before the pack is in its place and
removed when the trial has ended; `failed.json` names the last version that did not pass, and why.
So whenever the device is killed, the files tell which pack is in use, and which may not come back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from broker.durable import sync_path, write_file

TRIAL, FAILED = "trial.json", "failed.json"
MOST_STARTS = 3  # of a pack on trial: a kill or a power cut is not always its fault
LONGEST_TEXT = 300  # characters of a reason
_LARGEST_FILE = 4096  # bytes


@dataclass(frozen=True)
class Trial:
    """The version on trial, and how often the device has started with it."""

    version: int
    within: int  # seconds, in which it has to finish a round
    starts: int = 0

    @property
    def is_over(self) -> bool:
        return self.starts >= MOST_STARTS


@dataclass(frozen=True)
class Failed:
    """The last version that was rolled back."""

    version: int = 0
    text: str = ""


def read_trial(folder: Path, highest: int) -> Trial | None:
    """Returns the trial below a folder of packs; a damaged file ends that of the highest one."""
    match _read(folder / TRIAL):
        case None:
            return None
        case {"version": int(version), "within": int(within), "starts": int(starts)}:
            return Trial(version, within, starts)
    return Trial(highest, 1, MOST_STARTS)


def write_trial(folder: Path, trial: Trial) -> None:
    write_file(folder / TRIAL, json.dumps(asdict(trial)).encode())


def end_trial(folder: Path) -> None:
    (folder / TRIAL).unlink(missing_ok=True)
    sync_path(folder)


def read_failed(folder: Path) -> Failed:
    match _read(folder / FAILED):
        case {"version": int(version), "text": str(text)}:
            return Failed(version, text)
    return Failed()


def write_failed(folder: Path, failed: Failed) -> None:
    text = failed.text[:LONGEST_TEXT]
    write_file(folder / FAILED, json.dumps({"version": failed.version, "text": text}).encode())


def _read(file: Path) -> Any:
    """Returns what a file holds, None if there is no such file, and "" if it is damaged."""
    try:
        with file.open("rb") as opened:
            return json.loads(opened.read(_LARGEST_FILE)) or ""
    except FileNotFoundError:
        return None
    except ValueError:
        return ""
