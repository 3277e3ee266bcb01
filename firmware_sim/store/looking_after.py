"""What a person may do with the store of a device: show it, take its examples along, erase it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from broker.durable import is_claimed
from firmware_sim.errors import StoreError
from firmware_sim.store.database import FILE, Database, erase
from firmware_sim.store.slots import HELD_OUT, TRAINED, WAITING
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.limits import MIB

_PIECE = 256  # examples that are read at once
_PARTS = {"train": TRAINED, "test": HELD_OUT, "waiting": WAITING}


def show_store(folder: Path) -> list[str]:
    """Returns lines that say what the store of a state folder holds; a device may use it."""
    database = Database(folder / FILE)
    try:
        about, counters = _about(database), database.counters()
        facts = list(database.all_facts())
    finally:
        database.close()
    taken = sum(file.stat().st_size for file in folder.glob(f"{FILE}*"))
    slots = {name: sum(f[2] == part for f in facts) for name, part in _PARTS.items()}
    spec = ExampleSpec.from_json(about["spec"])
    lines = [
        f"{folder / FILE}: {len(facts)} of {about['slots']} examples, {taken / MIB:.1f} MiB",
        f"an example: {spec}",
        f"to train on: {slots['train']}, held out: {slots['test']}, "
        f"waiting for a label: {slots['waiting']}",
        f"kept: {about['keep']}; came: {counters['arrivals']}, replaced or not kept: "
        f"{counters['not_kept']}, without a label in time: {counters['expired']}",
    ]
    if facts:
        first, last = (_when(f(fact[4] for fact in facts)) for f in (min, max))
        lines.append(f"from {first} to {last}")
    if spec.is_one_class:
        labels = [fact[5] for fact in facts if fact[2] != WAITING]
        counts = [f"{label}: {labels.count(label)}" for label in sorted(set(labels))]
        lines.append(f"of each class: {', '.join(counts) or 'none'}")
    return lines


def export_store(folder: Path, file: Path) -> list[str]:
    """Writes the examples as `--task npz` takes them; those without a label as `x_waiting`."""
    database = Database(folder / FILE)
    try:
        spec = ExampleSpec.from_json(_about(database)["spec"])
        facts = sorted(database.all_facts(), key=lambda fact: fact[3])
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, part in _PARTS.items():
                slots = [fact[0] for fact in facts if fact[2] == part]
                _write(archive, f"x_{name}", spec.x, slots, _rows(database, spec, slots, 0))
                if spec.y is not None and part != WAITING:
                    _write(archive, f"y_{name}", spec.y, slots, _rows(database, spec, slots, 1))
    except OSError as error:
        raise StoreError(f"cannot write {file} ({error.strerror}).") from None
    finally:
        database.close()
    return [f"{file}: {len(facts)} examples"]


def erase_store(folder: Path) -> list[str]:
    """Removes the examples; no device may use them meanwhile."""
    if any(is_claimed(place) for place in (folder, *folder.glob("model-*"))):
        raise StoreError(f"a device is using {folder}; stop it before its examples are erased.")
    return [f"{folder / FILE}: {erase(folder) / MIB:.1f} MiB erased"]


def _about(database: Database) -> dict[str, str]:
    """Returns what the store says of itself; a kill may have come before it said anything."""
    if "spec" not in (about := database.about()):
        raise StoreError(f"{database.path} was never finished, and holds no examples.")
    return about


def _rows(database: Database, spec: ExampleSpec, slots: list[int], which: int) -> Iterator[bytes]:
    for start in range(0, len(slots), _PIECE):
        yield spec.unpack(database.contents(slots[start : start + _PIECE]))[which].tobytes()


def _write(
    archive: zipfile.ZipFile, name: str, spec: TensorSpec, slots: list[int], rows: Iterator[bytes]
) -> None:
    """Writes an array piece by piece: there may be more examples than memory."""
    shape = (len(slots), *spec.shape)
    header = {"descr": spec.dtype.str, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as array:
        np.lib.format.write_array_header_1_0(array, header)  # type: ignore[no-untyped-call]
        for row in rows:
            array.write(row)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
