"""Branches of the zoo for benchmarks: chosen by their names, and exported as bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras

from firmware_sim.bundle.reader import Bundle
from profiles import Profile
from toolkit import zoo
from toolkit.branch.branch import Branch, with_learning_rate
from toolkit.errors import ToolkitError
from toolkit.export.bundle import export
from toolkit.export.calibration import calibration_for

Entry = tuple[str, str, str]  # task, branch and topology


def chosen_entries(parts: Sequence[str]) -> list[Entry]:
    """Returns the zoo's branches whose names contain one of `parts`; all if there are none."""
    entries = [e for e in zoo.names() if not parts or any(part in "-".join(e) for part in parts)]
    if not entries:
        raise ToolkitError(f"no zoo branch is called like {' or '.join(parts)}.")
    return entries


def build_branch(
    task: str, branch: str, topology: str = "share-first", *, game: str | None = None
) -> Branch:
    """Returns a branch of the zoo; its weights are the same in every call."""
    keras.utils.set_random_seed(0)
    return zoo.build(task, branch, topology, game=game)


def export_branch(
    branch: Branch,
    task: str,
    profile: Profile,
    folder: Path,
    *,
    learning_rate: float | None = None,
) -> Bundle:
    """Exports the branch for the profile; None keeps its own learning rate."""
    calibration = calibration_for(branch, task, None)
    return export(
        with_learning_rate(branch, learning_rate),
        profile,
        folder,
        calibration=calibration,
        trained=(),
    )
