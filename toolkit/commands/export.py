"""`toolkit export`: a branch becomes a bundle."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles import load_profile
from toolkit.commands.options import (
    AsJson,
    CalibrationFile,
    OwnModel,
    ProfileName,
    ZooTask,
    ZooTopology,
    check_given,
)
from toolkit.errors import ToolkitError
from toolkit.terminal import quiet_terminal

if TYPE_CHECKING:
    from firmware_sim.bundle.reader import Bundle
    from toolkit.branch.branch import Branch

EXAMPLES = (
    "Examples:\n\n"
    "toolkit export --profile weak\n\n"
    "toolkit export --profile powerful --task cifar10 --topology cascading --out build/cifar\n\n"
    "toolkit export --profile weak --model my_branch.py:branch\n\n"
    "toolkit export --profile powerful --model my_pair.py:strong --cascade my_pair.py:weak\n\n"
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
    cascade: Annotated[
        str | None,
        typer.Option(
            help="Your weak network, to which --model is added; all of it is shared.",
            metavar="FILE.py:FUNCTION",
        ),
    ] = None,
    branch_dropout: Annotated[
        float | None,
        typer.Option(
            help="Train the cascade with this rate of branch dropout, as the paper does.",
            min=0.0,
            max=0.99,
            show_default="a loss at both outputs instead",
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            help="`all`, or shared layers of --model (of --cascade): names or stem*, with commas.",
            show_default="as the function says",
        ),
    ] = None,
    receive: Annotated[
        str | None,
        typer.Option(help="Layers that the fleet trains and this device only takes, with commas."),
    ] = None,
    update: Annotated[
        str,
        typer.Option(help="Which tensors train: all, last:K layers, biases, or auto, by cost."),
    ] = "all",
    max_step_ms: Annotated[
        float | None,
        typer.Option(
            help="--update auto: the longest step, of a batch.",
            min=0.01,
            show_default="half of the operations of a full update",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundle.", show_default="build/<profile>")
    ] = None,
    calibration: CalibrationFile = None,
    normalise: Annotated[
        bool,
        typer.Option(
            "--normalise",
            help="Devices normalise each channel by the mean and deviation of --calibration.",
        ),
    ] = False,
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
    if model is None and (cascade, branch_dropout, share) != (None, None, None):
        raise ToolkitError("--cascade, --branch-dropout and --share need --model.")
    if cascade is None and branch_dropout is not None:
        raise ToolkitError("--branch-dropout is about a cascade: give --cascade too.")
    if tune and tuning:
        raise ToolkitError("--tune measures a tuning and --tuning reads one; give one of the two.")
    if max_step_ms is not None and update != "auto":
        raise ToolkitError("--max-step-ms is for --update auto, which chooses what trains.")
    check_given(calibration, *(spec for spec in (model, cascade) if spec))
    chosen = load_profile(profile)
    target = out or Path("build") / chosen.name
    with quiet_terminal() as console, console.status("starting TensorFlow") as status:
        import keras

        from toolkit import zoo
        from toolkit.branch.drawn import trained_names
        from toolkit.branch.user_model import load_branch, load_cascade, receiving, sharing
        from toolkit.export.automatic import export_automatically
        from toolkit.export.bundle import STAGES, TUNED_STAGES
        from toolkit.export.bundle import export as write_bundle
        from toolkit.export.calibration import calibration_for
        from toolkit.export.inspection import frozen_lines
        from toolkit.tuning.files import read as read_tuning
        from toolkit.tuning.layers import layers_of
        from toolkit.updating.plans import AUTO, planned

        stages = TUNED_STAGES if tune else STAGES

        def progress(stage: str) -> None:
            number = stages.index(stage.partition(":")[0]) + 1
            status.update(f"{number}/{len(stages)} {stage}")

        def build() -> Branch:
            if model and cascade:
                return load_cascade(cascade, model, share=share, branch_dropout=branch_dropout)
            if model:
                return sharing(load_branch(model), share)
            return zoo.build(task, chosen.branch, topology, game)

        keras.utils.set_random_seed(seed)
        branch = build()
        trained = trained_names(branch, build) if model else frozenset()  # the zoo's are drawn
        smaller = None
        if model is None and chosen.branch == "complex":
            smaller = partial(zoo.build, task, "lightweight", topology, game)
        branch = receiving(branch, receive)
        examples = calibration_for(
            branch, None if model else task, calibration, normalise=normalise
        )

        def write(plan: Branch) -> Bundle:
            return write_bundle(
                plan,
                chosen,
                target,
                calibration=examples,
                progress=progress,
                trained=trained,
                smaller=smaller,
                tuning=read_tuning(tuning, chosen.runtime, layers_of(plan)) if tuning else None,
                tune=tune,
            )

        lines = []
        if update == AUTO:
            longest = None if max_step_ms is None else max_step_ms / 1e3
            found = export_automatically(branch, chosen, examples, write, max_step_seconds=longest)
            branch, bundle = found.branch, found.bundle
            lines.append(found.line())
        else:
            branch = planned(branch, update)
            bundle = write(branch)
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
        f"{manifest.micro_batch_size}; {measured.step_seconds * 1e3:.3g} ms a step of "
        f"{chosen.batch_size} ({measured.runtime}, {measured.threads} thread(s))"
    )
    if known := len(trained.intersection(branch.shared_names)):
        typer.echo(f"{known} of {len(branch.shared_names)} shared tensors bring trained values")
    if bundle.branch is None:
        typer.echo("layers have code of their own: `toolkit checkout` will need --model again")
    for line in (*lines, *frozen_lines(manifest.to_json())):
        typer.echo(line)
    if tune:
        source = manifest.tuning["source"]
        typer.echo(f"of the shipped and the measured tuning, the {source} one was kept")
