"""Labels as sensors write them, made into targets: a number of a class, or numbers."""

from __future__ import annotations

import contextlib
import json
import math
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from broker.durable import make_folder, write_file
from firmware_sim.errors import SourceError
from profiles.text import printable

LARGEST_FILE = 2**20  # bytes of the file with the names
LONGEST_NAME = 200  # characters


class NoLabel(ValueError):
    """A label that cannot be a target; the text is one sentence."""


class ClassNames:
    """Names of classes in the order of their numbers; an order once kept never changes.

    The names are those that the settings list. Without a list, a device that learns alone numbers
    names as they come; in a fleet every device must number them alike, so that there they are
    refused. A label that is a whole number is the number of its class.
    """

    def __init__(
        self,
        listed: tuple[str, ...] = (),
        *,
        outputs: int | None = None,
        file: Path | None = None,
        alone: bool = True,
    ) -> None:
        self._outputs = outputs
        self._file = file
        self._alone = alone
        self._listed = bool(listed)
        self._numbers = False  # labels came that are numbers
        kept = read_names(file) if file is not None else ()
        if listed and kept != listed[: len(kept)]:
            raise SourceError(
                f"{file} numbers the classes as {_shown(kept)}, and the settings list "
                f"{_shown(listed)}; list them in the same order, or use another --state."
            )
        if kept and not listed and not alone:
            raise SourceError(
                f"{file} numbers the classes as {_shown(kept)}: list them in the settings, "
                "in an order that is the same on every device of the fleet."
            )
        if outputs is not None and len(listed) > outputs:
            raise SourceError(
                f"the settings list {len(listed)} classes; the bundle tells {outputs} apart."
            )
        self.names = listed or kept
        if listed and kept != listed:
            self._keep()

    def number(self, label: Any) -> int:
        """Returns the number of a class; raises `NoLabel`."""
        if isinstance(label, str):
            whole = _whole(label.strip())
            return self._named(label.strip()) if whole is None or self.names else self._in(whole)
        if isinstance(label, bool | int) or (isinstance(label, float) and label.is_integer()):
            return self._in(int(label))
        raise NoLabel(f"the label {_short(label)} is neither a name nor a whole number.")

    def _in(self, number: int) -> int:
        self._numbers = True
        if number < 0 or (self._outputs is not None and number >= self._outputs):
            classes = "" if self._outputs is None else f" to {self._outputs - 1}"
            raise NoLabel(f"the label {number} is not a class from 0{classes}.")
        return number

    def _named(self, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        if self._listed:
            whole = _whole(name)
            if whole is not None:
                return self._in(whole)
            close = get_close_matches(name, self.names, n=1)
            hint = f" (did you mean {_short(close[0])}?)" if close else ""
            raise NoLabel(f"the label {_short(name)} is not one of the classes{hint}.")
        if _whole(name) is not None:
            raise NoLabel(f"the label {_short(name)} is a number, and those before were names.")
        if self._numbers:
            raise NoLabel(f"the label {_short(name)} is a name, and those before were numbers.")
        if not self._alone:
            raise NoLabel(
                f"the label {_short(name)} is a text: list all classes in the settings, "
                "in an order that is the same on every device of the fleet."
            )
        if not 0 < len(name) <= LONGEST_NAME:
            raise NoLabel(f"a class has a name of 1 to {LONGEST_NAME} characters.")
        if self._outputs is not None and len(self.names) >= self._outputs:
            raise NoLabel(
                f"the label {_short(name)} is one more class than the bundle tells apart."
            )
        self.names += (name,)
        self._keep()
        return len(self.names) - 1

    def _keep(self) -> None:
        if self._file is not None:
            make_folder(self._file.parent)
            write_file(self._file, json.dumps(list(self.names)).encode())


def read_names(file: Path) -> tuple[str, ...]:
    """Returns the names that a state folder keeps; none if it keeps none."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise ValueError
        names = json.loads(file.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SourceError(f"{file} is damaged: it must be a list of the names of classes.")
    return tuple(names)


def number_of(label: Any) -> float:
    """Returns a target that is a number; raises `NoLabel`."""
    if isinstance(label, str):
        label = number_in(label)
    if not isinstance(label, bool) and isinstance(label, int | float):
        with contextlib.suppress(OverflowError):
            if math.isfinite(label):
                return float(label)
    raise NoLabel("the label is not a finite number.")


def number_in(text: str) -> float | None:
    """Returns the number that a text is, or None; Python's 1_000 is none."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    number = number_in(text)
    return int(number) if number is not None and abs(number) < 2**31 and number % 1 == 0 else None


def _short(value: Any) -> str:
    return printable(repr(value), 60)


def _shown(names: tuple[str, ...]) -> str:
    return printable(", ".join(names), 200)
