"""`toolkit profiles`: the shipped profiles, or one key by key."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from profiles import Profile, load_profile, profile_names
from toolkit.commands.options import AsJson

EXAMPLES = "Examples:\n\ntoolkit profiles\n\ntoolkit profiles weak"


def profiles(
    name: Annotated[
        str | None, typer.Argument(help="Explain this one, shipped or a .toml file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the shipped profiles, or explain one key by key."""
    chosen = [load_profile(one) for one in ([name] if name else profile_names())]
    if as_json:
        typer.echo(json.dumps([asdict(profile) for profile in chosen], indent=2))
    elif name:
        console = Console()
        console.print(f"[bold]{chosen[0].name}[/]: {chosen[0].description}", highlight=False)
        table = Table(Column("key", no_wrap=True), Column("value", overflow="fold"), "meaning")
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
