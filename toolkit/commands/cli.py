"""The command `toolkit`. Heavy imports wait until a command needs them, so help is instant."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from firmware_sim.bundle.reader import open_bundle
from profiles import Profile, load_profile, profile_names
from profiles.errors import FAILED, INTERRUPTED, StemshareError
from profiles.text import printable
from toolkit.commands.bench import bench
from toolkit.commands.experiment import FIGURES_EXAMPLES, experiment, figures
from toolkit.errors import ToolkitError
from toolkit.terminal import QUIET, quiet_terminal
from toolkit.trained.play import PLAY_EXAMPLES, play

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"stemshare {version('stemshare')}")
        raise typer.Exit


@app.callback(
    epilog="Exit codes: 0 done; 1 something that a sentence explains; 2 wrong usage; "
    "130 interrupted.\n\nNO_COLOR=1 in the environment turns colours off."
)
def everywhere(
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", envvar=QUIET, help="No progress; only answers."),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it and stop.")
    ] = False,
) -> None:
    """Turns Keras branches into bundles that train on the stock TFLite runtimes."""
    if quiet:
        os.environ[QUIET] = "1"


app.add_typer(bench, name="bench")
app.add_typer(experiment, name="experiment")
app.command(epilog=FIGURES_EXAMPLES)(figures)
app.command(epilog=PLAY_EXAMPLES)(play)

LONGEST_SENTENCE = 600  # characters; the converter can say far more


class Task(StrEnum):
    atari = "atari"
    cartpole = "cartpole"
    cifar10 = "cifar10"
    digits = "digits"
    minatar = "minatar"


class Quantisation(StrEnum):
    float32 = "float32"
    float16 = "float16"
    dynamic = "dynamic"
    int8 = "int8"


class Topology(StrEnum):
    share_first = "share-first"
    cascading = "cascading"


@app.command(
    epilog="Examples:\n\n"
    "toolkit export --profile weak\n\n"
    "toolkit export --profile powerful --task cifar10 --topology cascading --out build/cifar\n\n"
    "toolkit export --profile weak --model my_branch.py:branch\n\n"
    "toolkit export --profile weak --tune"
)
def export(
    profile: Annotated[
        str, typer.Option(help="A shipped profile (see `toolkit profiles`) or a .toml file.")
    ],
    task: Annotated[Task, typer.Option(help="Which of the zoo's networks.")] = Task.atari,
    topology: Annotated[
        Topology, typer.Option(help="What the branches have in common.")
    ] = Topology.share_first,
    game: Annotated[
        str | None, typer.Option(help="minatar: which game.", show_default="breakout")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Your own branch, path/to/file.py:function, instead of the zoo's."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the bundle.", show_default="build/<profile>")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Examples for int8: an .npz file with an array x.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the random initial weights.", min=0, max=2**32 - 1)
    ] = 0,
    tune: Annotated[
        bool, typer.Option("--tune", help="Time every formulation of the convolutions here.")
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(help="What `python -m firmware_sim.tune` wrote on a device.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the manifest, for scripts.")
    ] = False,
) -> None:
    """Write a bundle: a branch that trains, its shared slice, and an inference model."""
    if game and task is not Task.minatar:
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
            branch = zoo.build(task.value, chosen.branch, topology.value, game)
            if chosen.branch == "complex":
                smaller = partial(zoo.build, task.value, "lightweight", topology.value, game)
        examples = calibration_for(branch, None if model else task.value, calibration)
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


@app.command(
    epilog="Example:\n\n"
    "toolkit candidates --profile weak --out build/candidates\n\n"
    "python -m firmware_sim.tune build/candidates --out tuning.json   (on the device)\n\n"
    "toolkit export --profile weak --tuning tuning.json"
)
def candidates(
    profile: Annotated[
        str, typer.Option(help="A shipped profile (see `toolkit profiles`) or a .toml file.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to be carried to a device.")],
    task: Annotated[Task, typer.Option(help="Which of the zoo's networks.")] = Task.atari,
    topology: Annotated[
        Topology, typer.Option(help="What the branches have in common.")
    ] = Topology.share_first,
    model: Annotated[
        str | None,
        typer.Option(help="Your own branch, path/to/file.py:function, instead of the zoo's."),
    ] = None,
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

        branch = (
            load_branch(model) if model else zoo.build(task.value, chosen.branch, topology.value)
        )
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


@app.command(
    epilog="Examples:\n\n"
    "toolkit requantise build/weak --state state/pi-1\n\n"
    "toolkit requantise build/weak --state state/pi-1 --quantisation float16 --data arrays.npz "
    "--model my_branch.py:branch"
)
def requantise(
    bundle: Annotated[Path, typer.Argument(help="Folder that `toolkit export` wrote.")],
    state: Annotated[Path, typer.Option(help="Folder with the device's checkpoint.")],
    quantisation: Annotated[
        Quantisation | None, typer.Option(show_default="what the bundle's profile says")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Your own branch, as it was exported: file.py:function.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Examples for int8: an .npz file with an array x.")
    ] = None,
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

        chosen = quantisation.value if quantisation else None
        done = renew(
            bundle,
            state,
            quantisation=chosen,
            model=model,
            calibration=calibration,
            data=data,
            progress=progress,
        )
    typer.echo(done.summary)


@app.command(
    epilog="Example, with this in my_branch.py:\n\n"
    "def branch(width):\n\n"
    "\u00a0   stem = layers.Conv2D(8, 3, activation='relu', name='stem')\n\n"
    "\u00a0   rest = (layers.Flatten(), layers.Dense(width), layers.Dense(10))\n\n"
    "\u00a0   model = keras.Sequential((keras.Input((28, 28, 1)), stem, *rest))\n\n"
    "\u00a0   return model, ('stem',)\n\n"
    "toolkit fit --profile weak --model my_branch.py:branch --max-step-ms 20"
)
def fit(
    profile: Annotated[
        str, typer.Option(help="A shipped profile (see `toolkit profiles`) or a .toml file.")
    ],
    model: Annotated[str, typer.Option(help="Your function of a width: path/to/file.py:function.")],
    min_width: Annotated[int, typer.Option(help="Least that is worth it.", min=1)] = 1,
    max_width: Annotated[int, typer.Option(help="Most that is tried.", min=1)] = 512,
    max_step_ms: Annotated[
        float | None, typer.Option(help="Longest training step, as measured here.", min=0.001)
    ] = None,
    max_operations: Annotated[
        int | None, typer.Option(help="Most operations of one inference.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Find the widest branch whose measured memory, operations and step time fit a profile.

    A wider branch is taken to need more, but the answer is measured: it fits, the next does not.
    """
    chosen = load_profile(profile)
    with quiet_terminal() as console, console.status("starting TensorFlow") as status:
        from toolkit.branch.user_model import load_function_of_width
        from toolkit.export.fit import fit as find_widest

        found = find_widest(
            load_function_of_width(model),
            chosen,
            min_width=min_width,
            max_width=max_width,
            max_operations=max_operations,
            max_step_seconds=max_step_ms and max_step_ms / 1e3,
            progress=status.update,
        )
    if as_json:
        typer.echo(json.dumps(found.report(profile, model), indent=2))
    else:
        Console().print(found.table())
        typer.echo(found.command(profile, model))


@app.command()
def inspect(
    bundle: Annotated[Path, typer.Argument(help="Folder that `toolkit export` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show a bundle's signatures, operations, tensors and what is shared."""
    opened = open_bundle(bundle)
    with quiet_terminal():
        from toolkit.export.inspection import inspect_bundle, print_report

        report = inspect_bundle(opened)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_report(report, Console())
        if tuning := report.get("tuning"):  # earlier bundles have none
            chosen = (f"{name} by {c['formulation']}" for name, c in tuning["layers"].items())
            typer.echo(f"formulations ({tuning['source']}): {', '.join(chosen) or 'no choice'}")


@app.command(epilog="Examples:\n\ntoolkit profiles\n\ntoolkit profiles weak")
def profiles(
    name: Annotated[
        str | None, typer.Argument(help="Explain this one, shipped or a .toml file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """List the shipped profiles, or explain one key by key."""
    chosen = [load_profile(one) for one in ([name] if name else profile_names())]
    if as_json:
        typer.echo(json.dumps([asdict(profile) for profile in chosen], indent=2))
    elif name:
        console = Console()
        console.print(f"[bold]{chosen[0].name}[/]: {chosen[0].description}", highlight=False)
        table = Table("key", "value", "meaning")
        for key in fields(Profile):
            if key.name not in ("name", "description"):
                value = str(getattr(chosen[0], key.name))
                table.add_row(key.name, value, key.metadata["doc"])
        console.print(table)
    else:
        table = Table("profile", "branch", "memory", "disk", "updates")
        for one in chosen:
            memory, disk = f"{one.memory_cap_mib} MiB", f"{one.storage_cap_mib} MiB"
            table.add_row(one.name, one.branch, memory, disk, one.update_quantisation)
        Console().print(table, *(f"{one.name}: {one.description}" for one in chosen), sep="\n")
        typer.echo("`toolkit profiles NAME` explains one key by key")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("build/demo"),
    rounds: Annotated[int, typer.Option(help="Merges of a fleet.", min=1)] = 15,
    steps: Annotated[int, typer.Option(help="Mini-batches in a round.", min=1)] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions, with seeds 0, 1, …", min=1)] = 3,
    embedded: Annotated[
        bool, typer.Option(help="Use the embedded broker even if mosquitto is installed.")
    ] = False,
) -> None:
    """Let a weak and a powerful device learn digits: alone, both alike, and each as it can.

    This is `toolkit experiment digits` in short, over a real broker and in the device's runtime.
    """
    from toolkit.experiment.demo import run_demo

    run_demo(out, rounds=rounds, steps=steps, seeds=seeds, embedded=embedded)


@app.command(
    epilog="Examples:\n\n"
    "toolkit provision --fleet greenhouse --device pi-1 --device pi-2 --host broker.local\n\n"
    "toolkit provision --fleet greenhouse --device pi-3   (adds one; the others stay)\n\n"
    "toolkit provision --fleet greenhouse --remove pi-2"
)
def provision(
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")],
    device: Annotated[
        list[str] | None, typer.Option(help="A device to let in; may be repeated.")
    ] = None,
    rotate: Annotated[
        list[str] | None, typer.Option(help="A device that gets a new password and certificate.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A device to shut out.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The fleet's folder.", show_default="fleets/<fleet>")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address of the broker, for its certificate; may be repeated.",
            show_default="localhost and 127.0.0.1",
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Of the broker.", show_default="8883")] = None,
    days: Annotated[int, typer.Option(help="How long new certificates are good.", min=1)] = 825,
    require_certificate: Annotated[
        bool | None,
        typer.Option(help="Whether devices must show certificates as well as passwords."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Of the devices: what their units allow.", show_default="weak"),
    ] = None,
) -> None:
    """Make certificates, passwords, access rules and mosquitto's configuration for a fleet.

    A second run adds devices and changes nothing for the others.
    """
    from toolkit.provisioning import fleet as provisioning

    folder = out or Path("fleets") / fleet
    for name in remove or []:
        provisioning.remove(folder, name)
        typer.echo(f"{name} is shut out once the broker has read its password file again")
    for name in rotate or []:
        provisioning.rotate(folder, name, days=days)
        typer.echo(f"{name} has new credentials in {folder}")
    if (remove or rotate) and not device:
        return
    made = provisioning.provision(
        fleet,
        device or [],
        folder,
        host_names=host or [],
        days=days,
        port=port,
        require_certificate=require_certificate,
        profile=load_profile(profile) if profile else None,
    )
    typer.echo(f"{folder}: {_count(made.added, 'added')}, {_count(made.kept, 'as before')}")
    typer.echo(f"  {made.broker} goes to the broker: `mosquitto -c mosquitto.conf` in that folder")
    for user in made.added:
        typer.echo(f"  {made.credentials(user)} goes to {user}; run.sh in it starts it")
    if made.kept and made.server_renewed:
        typer.echo(
            f"  the broker has a new certificate, for {', '.join(made.fleet.host_names)}: replace "
            "its files, restart it, replace every run.sh, and pack anew"
        )
    elif made.kept and made.added:
        typer.echo("  send SIGHUP to a mosquitto that runs already, so that it lets them in")


@app.command(
    epilog="Examples:\n\n"
    "toolkit pack build/weak --fleet greenhouse --device pi-1 -- --task digits --share 0:0.1\n\n"
    "python -m firmware_sim.device --pack pi-1.pack --state state   (on the device)"
)
def pack(
    bundle: Annotated[Path, typer.Argument(help="Folder that `toolkit export` wrote.")],
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")],
    device: Annotated[str, typer.Option(help="A device that was provisioned.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: what the device is started with.")
    ] = None,
    provisioned: Annotated[
        Path | None, typer.Option(help="The fleet's folder.", show_default="fleets/<fleet>")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file.", show_default="<folder>/packs/<device>.pack")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(help="Devices refuse a lower one.", show_default="the time in seconds"),
    ] = None,
) -> None:
    """Put a bundle, the broker's address and a device's credentials into one signed file.

    It holds the device's password and key in the clear: handle it like these.
    """
    from toolkit.provisioning.pack import pack as write_pack

    folder = provisioned or Path("fleets") / fleet
    packed = write_pack(
        bundle, folder, device, fleet=fleet, out=out, version=version, arguments=arguments or []
    )
    kilobytes = packed.file.stat().st_size / 1e3
    version = packed.index.version
    typer.echo(f"{packed.file}: version {version} for {device} of {fleet}, {kilobytes:,.0f} kB")
    if packed.unit:
        typer.echo(f"  {packed.unit} now allows the bundle's {packed.memory_cap_mib} MiB")


def _count(users: Sequence[str], what: str) -> str:
    return f"{', '.join(users) or 'nobody'} {what}"


def main() -> None:
    """Runs a command; what the user can mend is one sentence, not a traceback."""
    try:
        app()
    except StemshareError as error:
        sentence = escape(printable(shorten(str(error), LONGEST_SENTENCE, placeholder=" …")))
        colour = "red" if error.exit_code == FAILED else "yellow"
        Console(stderr=True).print(
            f"[{colour}]{error.heading}[/]{sentence}", highlight=False, soft_wrap=True
        )
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            Console(stderr=True).print("interrupted; nothing was replaced", highlight=False)
        raise


if __name__ == "__main__":
    main()
