"""The settings of a source: one TOML file, checked as strictly as a profile.

Each field of a class below is a key of the file; a file for one kind of source takes no key of
another kind.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, Literal, TypeVar

from firmware_sim.errors import SourceError
from firmware_sim.sources.decoding.windows import LabelOf, Missing

LARGEST_FILE = 2**20  # bytes of a file with settings
S = TypeVar("S", bound="Settings")


def _key(default: Any, doc: str, expected: str, is_right: Callable[[Any], bool]) -> Any:
    return field(default=default, metadata={"doc": doc, "expected": expected, "right": is_right})


def _text(doc: str, default: str = "") -> Any:
    return _key(default, doc, "a text", lambda value: isinstance(value, str))


def _texts(doc: str) -> Any:
    return _key((), doc, "a list of different texts", _are_texts)


def _flag(default: bool | None, doc: str) -> Any:
    return _key(default, doc, "true or false", lambda value: isinstance(value, bool))


def _count(default: int | None, doc: str, most: int) -> Any:
    right = lambda value: type(value) is int and 1 <= value <= most  # noqa: E731
    return _key(default, doc, f"a whole number from 1 to {most}", right)


def _choice(doc: str, *choices: str) -> Any:
    listed = ", ".join(map(repr, choices))
    return _key(choices[0], doc, f"one of {listed}", lambda v: isinstance(v, str) and v in choices)


def _are_texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(entry, str) and entry for entry in value)
        and len({*value}) == len(value)
    )


def _is_missing(value: Any) -> bool:
    if type(value) in (int, float):
        return math.isfinite(value)
    return isinstance(value, str) and value in ("skip", "hold")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every source has."""

    classes: tuple[str, ...] = _texts("Names of the classes, in the order of their numbers")


@dataclass(frozen=True, kw_only=True)
class WindowSettings(Settings):
    """How samples become windows."""

    window: int | None = _count(None, "Samples in a window (default: as the bundle takes)", 10**6)
    hop: int | None = _count(None, "Samples from window to window (default: `window`)", 10**9)
    label_of: LabelOf = _choice(  # noqa: RUF009
        "The label of a window: of its last sample, of most, their mean, or one for each sample",
        *("last", "majority", "mean", "each"),
    )
    missing: Missing = _key(  # noqa: RUF009
        "skip",
        "For a missing value: skip the window, hold the channel's last value, or this number",
        "'skip', 'hold' or a number",
        _is_missing,
    )


@dataclass(frozen=True, kw_only=True)
class CsvSettings(WindowSettings):
    """Lines of a file, a pipe or a serial device."""

    columns: tuple[str, ...] = _texts("The columns of a sample (default: all but the label's)")
    labels: tuple[str, ...] = _texts("The columns of the label (default: one called `label`)")
    names: tuple[str, ...] = _texts("All columns in their order, if no line says them")
    header: bool | None = _flag(
        None, "The first line names the columns (default: if it has no number)"
    )
    separator: str = _key(
        ",",
        "Between two columns",
        "one character that is no quote or line break",
        lambda value: isinstance(value, str) and len(value) == 1 and value not in '"\r\n\0',
    )
    follow: bool = _flag(True, "Wait for more lines at the end of a file")
    begin: Literal["start", "end"] = _choice(
        "Where a file is begun that was never read before", *("start", "end")
    )


@dataclass(frozen=True, kw_only=True)
class MqttSettings(WindowSettings):
    """Messages of sensors that publish."""

    payload: Literal["json", "text", "float32", "int16", "int32", "uint8"] = _choice(
        "What a message is: JSON, numbers as text, or an array, little-endian",
        *("json", "text", "float32", "int16", "int32", "uint8"),
    )
    fields: tuple[str, ...] = _texts("Where the channels are in JSON, as `accel.x` or `values.0`")
    labels: tuple[str, ...] = _texts("Where the label is in JSON")
    key: str = _text("Where in JSON the name is under which a label may come later")
    whole_windows: bool = _flag(False, "A message is a whole window instead of one sample")
    label_topic: str = _text("Topic on which labels come later, as JSON")
    label_key: str = _text("Where the name is in such a message (default: `key`)")
    label_fields: tuple[str, ...] = _texts(
        "Where the label is in such a message (default: `label`)"
    )
    broker: str = _text("Address of another broker (default: the fleet's)")
    user: str = _text("User name at that broker")
    password_file: str = _text("A file whose first line is the password at that broker")
    ca_file: str = _text("Authority that signed that broker's certificate")
    certificate_file: str = _text("Our own certificate at that broker")
    key_file: str = _text("Its private key")


@dataclass(frozen=True, kw_only=True)
class FolderSettings(WindowSettings):
    """Pictures or WAV files that appear."""

    rate: int | None = _count(None, "Samples a second of a WAV file; others are skipped", 10**7)


def read_settings(kind: type[S], file: Path | None) -> S:
    """Returns the settings in a TOML file, or the defaults without one; raises `SourceError`."""
    if file is None:
        return kind()
    keys = {key.name: key for key in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in _read(file).items():
        if name not in keys:
            raise SourceError(f"in {file}, key {short_repr(name)} is unknown{_hint(name, keys)}.")
        expected = keys[name].metadata["expected"]
        if not keys[name].metadata["right"](value):
            raise SourceError(
                f"in {file}, key {name!r} must be {expected}, but it is {short_repr(value)}."
            )
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _hint(name: str, keys: dict[str, Field[Any]]) -> str:
    close = get_close_matches(name.lower(), keys, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; the keys are {', '.join(keys)}"


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise SourceError(f"{file} is larger than any settings of a source.")
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise SourceError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # also of tomllib, for huge numbers and depths
        raise SourceError(f"{file} is not valid TOML ({short_repr(str(error))}).") from None
