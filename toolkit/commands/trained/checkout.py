"""`toolkit checkout`: the trained model out, as Keras, TFLite and ONNX files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import AsJson, BundleFolder, CalibrationFile
from toolkit.errors import ToolkitError
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Examples:\n\n"
    "toolkit checkout build/weak --state state/pi-1 --keras trained.keras\n\n"
    "toolkit checkout build/weak --state state/pi-1 --shared state/aggregator --tflite out.tflite "
    "--int8 --data arrays.npz --onnx out.onnx\n\n"
    "toolkit checkout build/weak --shared state/aggregator --slice start.safetensors"
)
DeviceState = Annotated[Path | None, typer.Option(help="Folder with a device's checkpoint.")]
FleetState = Annotated[
    Path | None,
    typer.Option(
        help="The fleet's shared weights instead: the aggregator's state, or its snapshot."
    ),
]


def checkout(
    bundle: BundleFolder,
    state: DeviceState = None,
    shared: FleetState = None,
    keras: Annotated[Path | None, typer.Option(help="Write the Keras model here.")] = None,
    tflite: Annotated[
        Path | None, typer.Option(help="Write an inference model here, in float32.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="--tflite: in 8-bit integers.")] = False,
    float16: Annotated[bool, typer.Option("--float16", help="--tflite: weights halved.")] = False,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="--tflite: weights in int8.")] = False,
    onnx: Annotated[Path | None, typer.Option(help="Write the whole network here.")] = None,
    slice_file: Annotated[
        Path | None,
        typer.Option("--slice", help="Write the shared tensors here, for an aggregator's --start."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="To compare on: an .npz file as devices take, or CIFAR-10's folder."),
    ] = None,
    calibration: CalibrationFile = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Only for layers with code of your own: file.py:function, as it was exported."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write what a device or a fleet has trained as Keras, TFLite and ONNX files.

    Each file is compared with the device's own answers before any is written.
    """
    chosen = [
        name for name, on in (("int8", int8), ("float16", float16), ("dynamic", dynamic)) if on
    ]
    if len(chosen) > 1 or (chosen and tflite is None):
        raise ToolkitError("--int8, --float16 and --dynamic are about --tflite: give one of them.")
    with quiet_terminal() as console, console.status("reading") as status:
        from toolkit.trained.checkout import STAGES, Wanted
        from toolkit.trained.checkout import checkout as write_files

        def progress(stage: str) -> None:
            status.update(f"{STAGES.index(stage) + 1}/{len(STAGES)} {stage}")

        done = write_files(
            bundle,
            Wanted(keras, tflite, onnx, slice_file),
            state=state,
            shared=shared,
            model=model,
            quantisation=chosen[0] if chosen else "float32",
            calibration=calibration,
            data=data,
            force=force,
            progress=progress,
        )
    typer.echo(json.dumps(done.to_json(), indent=2) if as_json else "\n".join(done.lines()))
