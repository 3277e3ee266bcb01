"""Every target, in the order in which data meet them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from toolkit.bench.fuzz.target import Target
from toolkit.errors import ToolkitError

# The module that holds each: a process that runs one imports (and instruments) no others.
_MODULES = {
    "profile": "given_files",
    "slice": "slices",
    "bundle": "given_files",
    "pack": "packs",
    "offer": "packs",
    "source_settings": "sensors",
    "csv": "sensors",
    "sensor_message": "sensors",
    "wav": "sensors",
    "picture": "sensors",
    "wire": "readers",
    "messages": "readers",
    "parts": "readers",
    "snapshot": "state_files",
    "journal": "state_files",
    "checkpoint": "state_files",
    "aggregator": "parties.aggregator",
    "device": "parties.device",
}
NAMES = tuple(_MODULES)


def target_of(name: str) -> Target:
    """Returns the target with this name."""
    if name not in _MODULES:
        raise ToolkitError(f"there is no target {name!r}; there are {', '.join(NAMES)}.")
    module = import_module(f"toolkit.bench.fuzz.{_MODULES[name]}")
    found: Target = next(target for target in module.TARGETS if target.name == name)
    return found


def chosen(names: Sequence[str]) -> list[Target]:
    """Returns the targets with these names, or all."""
    return [target_of(name) for name in names or NAMES]
