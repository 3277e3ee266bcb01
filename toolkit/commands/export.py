"""`toolkit export`: a branch becomes a bundle."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from profiles import load_profile
from toolkit.commands.options import (
    AsJson,
    CalibrationFile,
    OwnModel,
    ProfileName,
    ZooTask,
    ZooTopology,
)
from toolkit.errors import ToolkitError
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Examples:\n\n"
    "toolkit export --profile weak\n\n"
    "toolkit export --profile powerful --task cifar10 --topology cascading --out build/cifar\n\n"
    "toolkit export --profile weak --model my_branch.py:branch\n\n"
    "toolkit export --profile weak --tune"
)


def export(
    profile: ProfileName,
    task: ZooTask = "atari",
    topology: ZooTopology = "share-first",
    game: Annotated[
        str | None, typer.Option(help="minatar: which game.", show_default="breakout")
    ] = None,
    model: OwnModel = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundle.", show_default="build/<profile>")
    ] = None,
    calibration: CalibrationFile = None,
    seed: Annotated[
        int, typer.Option(help="Of the random initial weights.", min=0, max=2**32 - 1)
    ] = 0,
    tune: Annotated[
        bool, typer.Option("--tune", help="Time every formulation of the convolutions here.")
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(help="What `python -m firmware_sim.tune` wrote on a device.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a bundle: a branch that trains, its shared slice, and an inference model."""
    if game and task != "minatar":
        raise ToolkitError("only MinAtar's branches depend on the game; devices take --game.")
    if tune and tuning:
        raise ToolkitError("--tune measures a tuning and --tuning reads one; give one of the two.")
    chosen = load_profile(profile)
    target = out or Path("build") / chosen.name
    with quiet_terminal() as console, console.status("starting TensorFlow") as status:
        import keras

        from toolkit import zoo
        from toolkit.branch.user_model import load_branch
        from toolkit.export.bundle import STAGES, TUNED_STAGES
        from toolkit.export.bundle import export as write_bundle
        from toolkit.export.calibration import calibration_for
        from toolkit.tuning.files import read as read_tuning
        from toolkit.tuning.layers import layers_of

        stages = TUNED_STAGES if tune else STAGES

        def progress(stage: str) -> None:
            number = stages.index(stage.partition(":")[0]) + 1
            status.update(f"{number}/{len(stages)} {stage}")

        keras.utils.set_random_seed(seed)
        smaller = None
        if model:
            branch = load_branch(model)
        else:
            branch = zoo.build(task, chosen.branch, topology, game)
            if chosen.branch == "complex":
                smaller = partial(zoo.build, task, "lightweight", topology, game)
        examples = calibration_for(branch, None if model else task, calibration)
        bundle = write_bundle(
            branch,
            chosen,
            target,
            calibration=examples,
            progress=progress,
            smaller=smaller,
            tuning=read_tuning(tuning, chosen.runtime, layers_of(branch)) if tuning else None,
            tune=tune,
        )
    if as_json:
        typer.echo(json.dumps({"bundle": str(target), **bundle.manifest.to_json()}, indent=2))
        return
    manifest, measured = bundle.manifest, bundle.measured
    estimated = manifest.estimated["peak_bytes"]
    sizes = ", ".join(f"{n} {e.bytes / 1e3:,.0f} kB" for n, e in manifest.files.items())
    typer.echo(f"{target}: {branch.name}; {sizes}")
    typer.echo(
        f"a device takes {measured.peak_bytes / 2**20:.0f} MiB of the profile's "
        f"{chosen.memory_cap_mib} MiB (estimated: {estimated / 2**20:.0f} MiB) in micro-batches of "
        f"{manifest.micro_batch_size}; {measured.step_seconds * 1e3:.1f} ms a step of "
        f"{chosen.batch_size} ({measured.runtime}, {measured.threads} thread(s))"
    )
    if tune:
        source = manifest.tuning["source"]
        typer.echo(f"of the shipped and the measured tuning, the {source} one was kept")
