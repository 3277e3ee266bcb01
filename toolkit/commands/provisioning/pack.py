"""`toolkit pack`: one signed file with all that a device needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import AllowReadableKeys, BundleFolder, FleetName

EXAMPLES = (
    "Examples:\n\n"
    "toolkit pack build/weak --fleet greenhouse --device pi-1 -- --task digits --share 0:0.1\n\n"
    "toolkit pack build/weak --fleet greenhouse   (for toolkit rollout)\n\n"
    "python -m firmware_sim.device --pack pi-1.pack --state state   (on the device)"
)


def pack(
    bundle: BundleFolder,
    fleet: FleetName,
    device: Annotated[
        str | None,
        typer.Option(help="One that was provisioned.", show_default="all, without credentials"),
    ] = None,
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
    allow_readable_keys: AllowReadableKeys = False,
) -> None:
    """Put a bundle, the broker's address and a device's credentials into one signed file.

    It holds the device's password and key in the clear: handle it like these. Without --device it
    holds the bundle alone, for devices that have a pack already: toolkit rollout.
    """
    from toolkit.provisioning.pack import pack as write_pack

    folder = provisioned or Path("fleets") / fleet
    packed = write_pack(
        bundle,
        folder,
        device,
        fleet=fleet,
        out=out,
        version=version,
        arguments=arguments or [],
        allow_readable_keys=allow_readable_keys,
    )
    kilobytes = packed.file.stat().st_size / 1e3
    version = packed.index.version
    whom = device or "every device"
    typer.echo(f"{packed.file}: version {version} for {whom} of {fleet}, {kilobytes:,.0f} kB")
    if packed.unit:
        typer.echo(f"  {packed.unit} now allows the bundle's {packed.memory_cap_mib} MiB")
