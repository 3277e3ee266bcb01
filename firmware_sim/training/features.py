"""Features that are kept, so that a step on examples which were seen before runs no prefix.

They are rows of float32 in a file without a name, which the system removes when the device ends:
nothing has to be checked or cleaned up after a kill, and the first pass after a start makes them
again. Reading rows from a file keeps them out of the process's memory.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from broker.durable import make_folder
from firmware_sim.bundle.manifest import Manifest
from firmware_sim.errors import CheckpointError
from firmware_sim.tensor_spec import Array
from firmware_sim.training.limits import stored_bytes


class FeatureCache:
    """Keeps the features of the examples with the numbers 0 … `rows` - 1; others are made anew."""

    def __init__(self, folder: Path, shape: tuple[int, ...], rows: int) -> None:
        self._folder = folder
        self._shape = shape
        self._kept = np.zeros(rows, bool)
        self._bytes = 4 * int(np.prod(shape))  # of a row, in float32

    def take(self, numbers: Array, make: Callable[[Array], Array]) -> Array:
        """Returns a row for each number; `make` makes the rows of those that are not kept."""
        found = np.empty((len(numbers), *self._shape), np.float32)
        inside = numbers < len(self._kept)
        known = np.zeros(len(numbers), bool)
        known[inside] = self._kept[numbers[inside]]
        for place in np.flatnonzero(known):
            data = os.pread(self._descriptor, self._bytes, int(numbers[place]) * self._bytes)
            found[place] = np.frombuffer(data, np.float32).reshape(self._shape)
        if not known.all():
            found[~known] = make(numbers[~known])
            for place in np.flatnonzero(~known & inside):
                self._keep(int(numbers[place]), found[place])
        return found

    def forget(self, numbers: Array) -> None:
        """Drops rows whose examples have been replaced."""
        self._kept[numbers[numbers < len(self._kept)]] = False

    def _keep(self, number: int, row: Array) -> None:
        try:
            os.pwrite(self._descriptor, row.tobytes(), number * self._bytes)
        except OSError as error:
            raise CheckpointError(f"{self._folder} cannot be written ({error.strerror}).") from None
        self._kept[number] = True

    @cached_property
    def _descriptor(self) -> int:
        make_folder(self._folder)
        opened, name = tempfile.mkstemp(dir=self._folder)
        Path(name).unlink()
        weakref.finalize(self, os.close, opened)
        return opened


def cache_for(manifest: Manifest, folder: Path | None, examples: int) -> FeatureCache | None:
    """Returns a cache for as many of the examples as the profile's storage has room for.

    None if the branch has no prefix, or if there is no folder or no room.
    """
    if manifest.prefix is None or folder is None:
        return None
    free = manifest.profile.storage_cap_mib * 2**20 - stored_bytes(manifest)
    rows = min(examples, free // manifest.prefix.row_bytes)
    return FeatureCache(folder, manifest.prefix.features, rows) if rows > 0 else None
