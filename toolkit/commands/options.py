"""Options and arguments that several commands have, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit import zoo
from toolkit.errors import ModelError

ProfileName = Annotated[
    str, typer.Option(help="A shipped profile (see `toolkit profiles`) or a .toml file.")
]
ZooTask = Annotated[zoo.Task, typer.Option(help="Which of the zoo's networks.")]
ZooTopology = Annotated[zoo.Topology, typer.Option(help="Which layers the branches share.")]
OwnModel = Annotated[
    str | None,
    typer.Option(help="Your own branch instead of the zoo's: file.py:function, or a .keras file."),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option(help="Examples for int8: an .npz file with x, or the device's own."),
]
BundleFolder = Annotated[Path, typer.Argument(help="Folder that `toolkit export` wrote.")]
StateFolder = Annotated[Path, typer.Option(help="Folder with the device's checkpoint.")]
FleetName = Annotated[str, typer.Option(help="Name of the fleet.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Seeds = Annotated[int, typer.Option(help="Number of repetitions, with seeds 0, 1, …", min=1)]
AllowReadableKeys = Annotated[
    bool, typer.Option(help="Use keys that other users of this machine can read.")
]


def check_given(calibration: Path | None, *models: str) -> None:
    """Raises for a file that is not there or cannot be read, before TensorFlow is loaded."""
    for spec in models:
        file, _, function = spec.partition(":")
        named = (file and function) or spec.endswith(".keras")  # otherwise its form is wrong
        if named and not Path(file).is_file():
            raise ModelError(f"there is no file {file}.")
    if calibration is not None:
        from firmware_sim.tasks.arrays import read_inputs

        read_inputs(calibration)
