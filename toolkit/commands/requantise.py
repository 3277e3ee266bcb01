"""`toolkit requantise`: an inference model of what a device has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiles.profile import InferenceQuantisation
from toolkit.commands.options import BundleFolder, CalibrationFile, StateFolder
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Examples:\n\n"
    "toolkit requantise build/weak --state state/pi-1\n\n"
    "toolkit requantise build/weak --state state/pi-1 --quantisation float16 --data arrays.npz "
    "--model my_branch.py:branch"
)


def requantise(
    bundle: BundleFolder,
    state: StateFolder,
    quantisation: Annotated[
        InferenceQuantisation | None, typer.Option(show_default="what the bundle's profile says")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Your own branch, as it was exported: file.py:function.")
    ] = None,
    calibration: CalibrationFile = None,
    data: Annotated[
        Path | None,
        typer.Option(help="To test with: an .npz file as devices take, or CIFAR-10's folder."),
    ] = None,
) -> None:
    """Renew a bundle's inference model from the weights that a device has trained.

    What quantising costs is measured in the device's runtime against float32.
    """
    with quiet_terminal() as console, console.status("starting TensorFlow") as status:
        from toolkit.trained.requantise import STAGES
        from toolkit.trained.requantise import requantise as renew

        def progress(stage: str) -> None:
            status.update(f"{STAGES.index(stage) + 1}/{len(STAGES)} {stage}")

        done = renew(
            bundle,
            state,
            quantisation=quantisation,
            model=model,
            calibration=calibration,
            data=data,
            progress=progress,
        )
    typer.echo(done.summary)
