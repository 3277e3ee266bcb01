"""`toolkit inspect`: what is in a bundle."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from firmware_sim.bundle.reader import open_bundle
from toolkit.commands.options import AsJson, BundleFolder
from toolkit.terminal import quiet_terminal


def inspect(
    bundle: BundleFolder,
    as_json: AsJson = False,
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
