"""Opens the source that `--source` names.

my_source.py:windows    a function in a Python file that yields examples
csv:… mqtt:… folder:…   the kinds in `KINDS`
package:name            a function that an installed package offers as an entry point
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from firmware_sim.errors import SourceError
from firmware_sim.sources.python_file import function_in_file, source_of
from firmware_sim.sources.request import Request
from firmware_sim.sources.source import Source

GROUP = "stemshare.sources"  # of entry points

# The module and the function that opens each kind: (what follows the colon, request) → source.
KINDS: Mapping[str, tuple[str, str]] = {
    "csv": ("firmware_sim.sources.csv_lines", "open_csv"),
    "mqtt": ("firmware_sim.sources.mqtt_topic", "open_mqtt"),
    "folder": ("firmware_sim.sources.folder", "open_folder"),
}


def open_source(text: str, request: Request) -> Source:
    """Returns the source; raises `SourceError` if there is none of this name."""
    kind, colon, rest = text.partition(":")
    if kind in KINDS and colon:
        module, function = KINDS[kind]
        opened: Source = getattr(import_module(module), function)(rest, request)
        return opened
    place, _, name = text.rpartition(":")
    if place.endswith(".py"):
        return source_of(function_in_file(Path(place), name), text)
    return source_of(_installed(place, name, text), text)


def _installed(package: str, name: str, text: str) -> Callable[[], Any]:
    for point in entry_points(group=GROUP, name=name):
        if point.dist is not None and point.dist.name == package:
            try:
                found: Callable[[], Any] = point.load()
            except (ImportError, AttributeError) as error:
                raise SourceError(f"the source {text} cannot be loaded ({error}).") from None
            return found
    kinds = "".join(f"{kind}:…, " for kind in KINDS)
    raise SourceError(
        f"there is no source {text!r}; there are {kinds}FILE.py:FUNCTION, and package:name "
        f"with the entry point name in the group {GROUP}."
    )
