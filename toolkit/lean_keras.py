"""Keras without packages that it would load for parts of it that nothing here uses.

Where scikit-learn, pandas and matplotlib are installed, Keras imports them for its wrappers, data
frames and galleries, which is a third of the time that it takes to start. Where they are missing it
goes on without them. So here they are missing, for Keras alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

_UNUSED = frozenset({"matplotlib", "pandas", "sklearn"})


def keep_keras_lean() -> None:
    """Holds for this process, from now on; what Keras has loaded already stays."""
    if not any(isinstance(finder, _Missing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Missing())


class _Missing(MetaPathFinder):
    """Finds nothing, and ends the search for what Keras does not need."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _UNUSED and _importer(sys._getframe(1)).split(".")[0] == "keras":
            raise ModuleNotFoundError(f"Keras is loaded without {name}.", name=name)
        return None


def _importer(frame: FrameType | None) -> str:
    """The module whose import statement is executed."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib.", "_frozen_importlib")):
            return name
        frame = frame.f_back
    return ""
