"""`toolkit fleet stop` and `start`: the end of a run, and a new one from trained weights."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.fleet.steering import SigningKey, Wait, signing_of
from toolkit.commands.link import FleetLink, to_a_fleet
from toolkit.errors import ObserverError

START_EXAMPLES = (
    "Examples:\n\n"
    "toolkit fleet start --from build/weak --fleet greenhouse\n\n"
    "toolkit fleet start --from state/aggregator --slice build/weak/shared.onnx "
    "--fleet greenhouse -- --quorum 3 --rounds 100"
)


@to_a_fleet
def stop(
    link: FleetLink,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    signing_key: SigningKey = None,
    wait: Wait = 30.0,
) -> None:
    """Stop the fleet's aggregator; it keeps everything, and devices wait for the next one."""
    from toolkit.observing.operator import operating

    with operating(link.fleet, link.link, signing_of(signing_key)) as operator:
        answer = operator.stop(reason=reason, patience=wait)
    if answer is None:
        raise ObserverError(f"the aggregator has not answered within {wait:g} s.")
    if not answer.done:
        raise ObserverError(f"the aggregator refuses: {answer.text}")
    typer.echo(f"the aggregator of {link.fleet} has stopped; its devices wait")


@to_a_fleet
def start(
    link: FleetLink,
    begin_from: Annotated[
        Path,
        typer.Option(
            "--from",
            help="Trained values: a bundle, a state folder or snapshot of an aggregator, or a "
            "file of `toolkit checkout --slice`.",
        ),
    ],
    slices: Annotated[
        list[Path] | None,
        typer.Option(
            "--slice",
            help="shared.onnx of each kind of device.",
            show_default="that of the bundle",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="A new folder for the run.", show_default="state/<fleet>-<time>"),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: more options of the aggregator.")
    ] = None,
) -> None:
    """Start a new run of a fleet from trained weights, with an aggregator in this process.

    Its devices follow by themselves; what each has learnt of its own stays.
    """
    from broker.aggregator.__main__ import main as aggregate

    folder = state or Path("state") / f"{link.fleet}-{int(time.time())}"
    if folder.exists() and any(folder.iterdir()):
        raise ObserverError(f"{folder} is not empty: a new run needs a new --state.")
    found = slices or [begin_from / "shared.onnx"]
    if missing := [path for path in found if not path.is_file()]:
        raise ObserverError(f"{missing[0]} is missing; say --slice FILE for each kind of device.")
    credentials = link.link.credentials
    given = {
        "--fleet": link.fleet,
        "--broker": str(link.link.address),
        "--start": begin_from,
        "--state": folder,
        "--user": credentials.user,
        "--password-file": credentials.password_file,
        "--ca-file": credentials.ca_file,
        "--certificate-file": credentials.certificate_file,
        "--key-file": credentials.key_file,
    }
    options = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    options += [str(word) for path in found for word in ("--slice", path)]
    sys.stderr.write(f"the run is kept in {folder}; start the aggregator with it to go on\n")
    aggregate([*options, *(arguments or [])])
