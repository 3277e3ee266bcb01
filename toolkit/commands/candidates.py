"""`toolkit candidates`: every formulation of a branch's convolutions, for a device to time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiles import load_profile
from toolkit.commands.options import OwnModel, ProfileName, ZooTask, ZooTopology
from toolkit.terminal import quiet_terminal

EXAMPLES = (
    "Example:\n\n"
    "toolkit candidates --profile weak --out build/candidates\n\n"
    "python -m firmware_sim.tune build/candidates --out tuning.json   (on the device)\n\n"
    "toolkit export --profile weak --tuning tuning.json"
)


def candidates(
    profile: ProfileName,
    out: Annotated[Path, typer.Option(help="Folder to be carried to a device.")],
    task: ZooTask = "atari",
    topology: ZooTopology = "share-first",
    model: OwnModel = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="As the export found to fit.", min=1, show_default="the profile's batch"),
    ] = None,
) -> None:
    """Write every formulation of a branch's convolutions, for a device to time."""
    chosen = load_profile(profile)
    with quiet_terminal() as console, console.status("starting TensorFlow") as status:
        from toolkit import zoo
        from toolkit.autodiff.lower import part_bytes
        from toolkit.branch.user_model import load_branch
        from toolkit.tuning.candidates import write_candidates
        from toolkit.tuning.layers import layers_of

        branch = load_branch(model) if model else zoo.build(task, chosen.branch, topology)
        layers = layers_of(branch)
        write_candidates(
            layers,
            micro_batch or chosen.batch_size,
            out,
            part_bytes=part_bytes(chosen.runtime),
            progress=status.update,
        )
    typer.echo(f"{out}: {branch.name}; {', '.join(layer.name for layer in layers)}")
    typer.echo(
        f"on the device: python -m firmware_sim.tune {out.name} --runtime {chosen.runtime} "
        f"--threads {chosen.threads}"
    )
