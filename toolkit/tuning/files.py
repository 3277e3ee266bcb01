"""Tuning files: what `firmware_sim.tune` found on a device, and those that ship for the zoo."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from firmware_sim.tune import FORMAT
from toolkit.autodiff.lower import Choice, Layer, Tuning
from toolkit.autodiff.rules.formulations import FORMULATIONS
from toolkit.errors import ExportError

SHIPPED, MEASURED, RULE = "shipped", "measured", "rule"


@dataclass(frozen=True)
class SourcedTuning(Tuning):
    """A tuning, and where it comes from: shipped, measured here, a rule, or a file's name."""

    source: str = RULE

    def describe(self, layers: Sequence[Layer]) -> dict[str, Any]:
        """Returns what the manifest states about the tuning."""
        chosen = {layer.name: asdict(self.choose(layer)) for layer in layers}
        return {"source": self.source, "layers": chosen}


def read(path: Path, runtime: str, layers: Sequence[Layer] = ()) -> SourcedTuning:
    """The tuning in a file that was recorded in `runtime` and holds at least `layers`."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ExportError(f"the tuning {path} cannot be read ({error.strerror}).") from error
    tuning = _parse(text, str(path), runtime, source=path.name)
    if missing := [layer.name for layer in layers if layer.name not in tuning.choices]:
        raise ExportError(
            f"the tuning {path} does not hold the layer {missing[0]!r}; record one with the "
            "candidates of this branch."
        )
    return tuning


@functools.cache
def shipped(runtime: str) -> SourcedTuning:
    """What was measured for the zoo's layers; a runtime without a file has the rule alone."""
    file = files("toolkit.tuning") / f"{runtime}.json"
    if not file.is_file():
        return SourcedTuning(runtime)
    return _parse(file.read_bytes(), file.name, runtime, source=SHIPPED)


def _parse(text: bytes, name: str, runtime: str, *, source: str) -> SourcedTuning:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ExportError(f"the tuning {name} is not JSON ({error}).") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ExportError(
            f"the tuning {name} is not of format {FORMAT}; record it with this version's "
            "`python -m firmware_sim.tune`."
        )
    if found.get("runtime") != runtime:
        raise ExportError(
            f"the tuning {name} was recorded in {found.get('runtime')}, but the profile's runtime "
            f"is {runtime}."
        )
    layers = found.get("layers")
    if not isinstance(layers, dict):
        raise ExportError(f"the tuning {name} holds no layers.")
    choices = {layer: _choice(entry, layer, name) for layer, entry in layers.items()}
    return SourcedTuning(runtime, choices, source)


def _choice(entry: Mapping[str, Any], layer: str, name: str) -> Choice:
    where = f"the tuning {name} has, for the layer {layer!r},"
    if not isinstance(entry, dict):
        raise ExportError(f"{where} no choice.")
    formulation, part_bytes = entry.get("formulation"), entry.get("part_bytes")
    if formulation not in FORMULATIONS:
        offered = ", ".join(FORMULATIONS)
        raise ExportError(f"{where} the unknown formulation {formulation!r}; there are {offered}.")
    if type(part_bytes) is not int or part_bytes < 1:  # to Python a boolean is an integer
        raise ExportError(f"{where} {part_bytes!r} as part_bytes, which is a number of bytes.")
    return Choice(formulation, part_bytes)
