"""The frozen `Profile`, and the loader that refuses every file it does not fully understand."""

import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, Literal, get_args

from profiles.errors import ProfileError

BranchKind = Literal["lightweight", "complex"]
InferenceQuantisation = Literal["float32", "float16", "dynamic", "int8"]
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_HOURS = re.compile(f"(?:{_TIME}-{_TIME}(?:, *{_TIME}-{_TIME})*)?")
_PATH = re.compile("/[^\\x00-\\x1f]*")


@dataclass(frozen=True)
class _Form:
    """What the text of a key must look like: in words, and as a pattern."""

    words: str
    pattern: re.Pattern[str]


def _key(
    doc: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    unit: str = "",
    form: _Form | None = None,
) -> dict[str, Any]:
    """Metadata of one field; choices are not repeated here, they are the field's `Literal`.

    A `unit` is also the suffix of the field's name, so that no file can be read in another unit.
    """
    return {"doc": doc, "least": least, "most": most, "unit": unit, "form": form}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One device's limits and choices; each field but `name` is a TOML key, checked as declared.

    A key with a default may be left out; the default sets no limit.
    """

    name: str = field(metadata=_key("Name of the file, without its suffix"))
    description: str = field(metadata=_key("The device, in one line"))
    branch: BranchKind = field(metadata=_key("Network the device trains"))
    batch_size: int = field(metadata=_key("Samples in one training step", least=1, most=4096))
    threads: int = field(metadata=_key("CPU threads the runtime may use", least=1, most=64))
    runtime: Literal["ai-edge-litert", "tflite-runtime"] = field(
        metadata=_key("TFLite runtime whose speed the bundle is made for; both run it")
    )
    memory_cap_mib: int = field(
        metadata=_key("Most memory the device agent may use", least=1, most=2**20, unit="MiB")
    )
    storage_cap_mib: int = field(
        metadata=_key("Most disk the device agent may use", least=1, most=2**24, unit="MiB")
    )
    inference_quantisation: InferenceQuantisation = field(
        metadata=_key("How the weights of the inference model are stored")
    )
    update_quantisation: Literal["float32", "float16", "int8", "int4"] = field(
        metadata=_key("How the numbers of an update are sent")
    )
    packet_limit_kib: int = field(
        metadata=_key(
            "Largest MQTT packet it sends; more goes in parts", least=8, most=2**18, unit="KiB"
        )
    )
    bandwidth_kbps: int = field(
        metadata=_key(
            "Speed of a simulated link, each way, in 1000 bit/s", least=1, most=10**8, unit="kbps"
        )
    )
    interaction_rate: float = field(
        metadata=_key(
            "Part of a round's mini-batches that the device trains", least=0.001, most=1.0
        )
    )
    frozen_precision: Literal["float32", "int8"] = field(
        default="float32",
        metadata=_key("How the frozen layers that a branch begins with are computed"),
    )
    duty_cycle: float = field(
        default=1.0,
        metadata=_key("Part of the time that training takes; it rests", least=0.01, most=1.0),
    )
    temperature_limit_celsius: float = field(
        default=0.0,
        metadata=_key("Pauses above it; 0: no limit", least=0.0, most=150.0, unit="celsius"),
    )
    hysteresis_celsius: float = field(
        default=5.0,
        metadata=_key("Goes on this far below the limit", least=0.0, most=50.0, unit="celsius"),
    )
    temperature_file: str = field(
        default="/sys/class/thermal/thermal_zone0/temp",
        metadata=_key("Where the kernel says the temperature", form=_Form("a path from /", _PATH)),
    )
    battery_limit_percent: int = field(
        default=0,
        metadata=_key(
            "On battery, pauses at this charge and below; 0: no limit, 100: always",
            least=0,
            most=100,
            unit="percent",
        ),
    )
    battery_folder: str = field(
        default="/sys/class/power_supply",
        metadata=_key("Where the kernel lists batteries", form=_Form("a path from /", _PATH)),
    )
    pause_file: str = field(
        default="",
        metadata=_key(
            "Pauses while this file exists",
            form=_Form("a path from / or empty", re.compile(f"(?:{_PATH.pattern})?")),
        ),
    )
    quiet_hours: str = field(
        default="",
        metadata=_key(
            "Pauses at these times of the local day",
            form=_Form("as '22:00-06:00, 12:30-13:30' or empty", _HOURS),
        ),
    )


_KEYS: dict[str, Field[Any]] = {f.name: f for f in fields(Profile) if f.name != "name"}
_SHIPPED = files("profiles")
_TOML_TYPES: dict[object, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "an array",
    dict: "a table",
    type(None): "null",  # in a manifest, which is JSON
}


def profile_names() -> tuple[str, ...]:
    """Sorted names of the profiles shipped in this package."""
    return _names(_SHIPPED)


def load_profile(name_or_path: str | Path) -> Profile:
    """Load a shipped profile by its bare name, or any TOML file by its path."""
    text = str(name_or_path)
    folder: Traversable
    if Path(text).name == text and not text.endswith(".toml"):
        if text not in profile_names():
            problem = f"is not shipped; the shipped ones are {_listed(profile_names())}"
            raise ProfileError(text, None, problem + _did_you_mean(text, profile_names()))
        folder, file_name = _SHIPPED, f"{text}.toml"
    else:
        folder, file_name = Path(text).parent, Path(text).name

    values = _read_with_bases(folder, file_name)
    for key in _KEYS.values():
        if key.name not in values and key.default is MISSING:
            problem = f"is missing; it must be {_expected(key)}"
            raise ProfileError(str(folder / file_name), key.name, problem)
    return Profile(name=Path(file_name).stem, **values)


def _read_with_bases(folder: Traversable, file_name: str) -> dict[str, Any]:
    """Values of a file over those of what it extends; each file is checked on its own.

    A shipped name means the shipped profile everywhere, even beside a file of the same name.
    """
    values: dict[str, Any] = {}
    chain = [(folder, file_name)]
    while True:
        file = folder / file_name
        table = _read(file)
        base = table.pop("extends", None)
        for name, value in table.items():
            if problem := problem_with(name, value):
                raise ProfileError(str(file), name, problem)
        values = {name: _as_declared(name, value) for name, value in table.items()} | values
        if base is None:
            return values

        folder, file_name = _base(base, folder, file)
        chain.append((folder, file_name))
        if chain[-1] in chain[:-1]:
            names = " extends ".join(repr(Path(name).stem) for _, name in chain)
            raise ProfileError(str(file), "extends", f"closes a cycle: {names}")


def _base(name: object, folder: Traversable, file: Traversable) -> tuple[Traversable, str]:
    """Where the profile called `name` lives, as seen from `file` in `folder`."""
    if not isinstance(name, str):
        raise ProfileError(str(file), "extends", f"must be a string, but it is {_type(name)}")
    # Names are looked up in listings, not joined to a path: no name leads out of the folder.
    if name in profile_names():
        return _SHIPPED, f"{name}.toml"
    try:
        siblings = _names(folder)
    except OSError as error:
        problem = f"cannot be followed, as the folder cannot be listed ({error.strerror})"
        raise ProfileError(str(file), "extends", problem) from error
    if name in siblings:
        return folder, f"{name}.toml"
    problem = (
        f"names {short_repr(name)}, which is neither a file in the same folder "
        f"nor a shipped profile ({_listed(profile_names())})"
    )
    suggestion = _did_you_mean(name, {*profile_names(), *siblings})
    raise ProfileError(str(file), "extends", problem + suggestion)


def _names(folder: Traversable) -> tuple[str, ...]:
    entries = sorted(entry.name for entry in folder.iterdir())
    return tuple(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def _read(file: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    # Beside its own error, tomllib lets integers of thousands of digits (ValueError)
    # and very deep nesting (RecursionError) fail in their own ways.
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(str(file), None, _read_problem(error)) from error


def _read_problem(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist"
        case IsADirectoryError():
            return "is a folder, not a file"
        case OSError():
            return f"cannot be read ({error.strerror})"
        case UnicodeDecodeError():
            byte = error.object[error.start]
            return f"is not UTF-8 text (byte 0x{byte:02x} at offset {error.start})"
        case _:
            return f"is not valid TOML: {error}"


def problem_with(name: str, value: object) -> str | None:
    """What is wrong with the value of one key of a profile, or None."""
    if name not in _KEYS:
        return _unknown(name)
    key = _KEYS[name]
    # `type` and not `isinstance`: to Python, though not to TOML, a boolean is an integer.
    if type(value) not in _accepted(key):
        found = _type(value)
    elif _allowed(key, value):
        return _endless(str(value)) if name == "quiet_hours" else None
    else:
        found = short_repr(value)
    return f"must be {_expected(key)}, but it is {found}"


def _endless(hours: str) -> str | None:
    """What is wrong with quiet hours of which an interval has no end, or None."""
    for interval in filter(None, hours.split(",")):
        begin, end = interval.strip().split("-")
        if begin == end:
            return f"has the interval {interval.strip()}, which would never end"
    return None


def _accepted(key: Field[Any]) -> tuple[object, ...]:
    """Types of value that a key takes; 1 is as good a float as 1.0, whatever TOML says."""
    if get_args(key.type):
        return (str,)
    return (int, float) if key.type is float else (key.type,)


def _as_declared(name: str, value: Any) -> Any:
    return float(value) if _KEYS[name].type is float else value


def _allowed(key: Field[Any], value: Any) -> bool:
    if choices := get_args(key.type):
        return value in choices
    if form := key.metadata["form"]:
        return bool(form.pattern.fullmatch(value))
    least, most = key.metadata["least"], key.metadata["most"]
    return not isinstance(value, int | float) or least <= value <= most


def _unknown(name: str) -> str:
    for key in _KEYS.values():
        if unit := key.metadata["unit"]:
            quantity = key.name.removesuffix(f"_{unit.lower()}")
            if name.lower() == quantity or name.lower().startswith(f"{quantity}_"):
                return f"is unknown: the unit is {unit} and the key is {key.name!r}"
    known = [*_KEYS, "extends"]
    return "is unknown" + (_did_you_mean(name, known) or f"; the keys are {_listed(known)}")


def _expected(key: Field[Any]) -> str:
    if choices := get_args(key.type):
        return f"one of {_listed(choices)}"
    if form := key.metadata["form"]:
        return str(form.words)
    if key.type not in (int, float):
        return _TOML_TYPES[key.type]
    least, most, unit = (key.metadata[name] for name in ("least", "most", "unit"))
    kind = "a number" if key.type is float else _TOML_TYPES[key.type]
    return f"{kind} from {least} to {most}" + (f" ({unit})" if unit else "")


def _type(value: object) -> str:
    return _TOML_TYPES.get(type(value), "a date or time")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name.lower(), sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
