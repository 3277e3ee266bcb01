"""Writes a model as a flatbuffer in which equal vectors, strings and lists are there once."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np

from toolkit.conversion.flatbuffer import Model

_SMALL = 16  # bytes of a constant that no kernel reads as a vector


def pack(model: Model, size: int) -> bytes:
    """The file's content; `size` is a guess of its length."""
    builder = _SharingBuilder(size)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class _SharingBuilder(flatbuffers.Builder):  # type: ignore[misc]
    """Writes equal vectors and strings once, and constants aligned for the runtimes' kernels.

    Shapes, positions and single numbers are read one by one, and need no more than their own 4.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._vectors: dict[tuple[str, bytes], int] = {}
        self._strings: dict[Any, int] = {}
        self._lists: dict[tuple[int, ...], int] = {}
        self._before = 0  # where the vector that is being written began
        self._entries: list[int] | None = None  # those of it that are tables

    def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802
        key = (x.dtype.str, x.tobytes())
        if key not in self._vectors:
            if x.dtype == np.uint8:  # so that the bytes themselves start there
                self.Prep(16 if x.size > _SMALL else 4, x.size)
            self._vectors[key] = super().CreateNumpyVector(x)
        return self._vectors[key]

    def StartVector(self, *sizes: int) -> int:  # noqa: N802
        self._before, self._entries = self.Offset(), []
        return int(super().StartVector(*sizes))

    def PrependUOffsetTRelative(self, off: int) -> None:  # noqa: N802
        if self._entries is not None:
            self._entries.append(off)
        super().PrependUOffsetTRelative(off)

    def EndVector(self, *number: int) -> int:  # noqa: N802
        """A list of tables that was written before is taken back."""
        place, entries = int(super().EndVector(*number)), tuple(self._entries or ())
        self._entries = None
        if not entries:
            return place
        if entries in self._lists:
            self.head = len(self.Bytes) - self._before
        return self._lists.setdefault(entries, place)

    def CreateString(self, s: Any, *args: Any) -> int:  # noqa: N802
        if s not in self._strings:
            self._strings[s] = super().CreateString(s, *args)
        return self._strings[s]
