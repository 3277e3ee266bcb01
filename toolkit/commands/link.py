"""The options of every command that speaks to a fleet's broker, defined once.

`@to_a_fleet` gives them to a command, which gets them as one argument, `link`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.protocol.topics import Topics
from broker.transport.address import Credentials, parse_address
from broker.transport.options import DEFAULT_BROKER
from toolkit.observing.link import Link


@dataclass(frozen=True)
class FleetLink:
    """A fleet, and how its broker is reached."""

    fleet: str
    link: Link


def _options(
    fleet: Annotated[str, typer.Option(help="Name of the fleet.", envvar="STEMSHARE_FLEET")],
    broker: Annotated[
        str, typer.Option(help="mqtt://HOST:PORT, or mqtts://.", envvar="STEMSHARE_BROKER")
    ] = DEFAULT_BROKER,
    user: Annotated[
        str | None, typer.Option(help="User name at the broker.", envvar="STEMSHARE_USER")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(help="Its first line is the password.", envvar="STEMSHARE_PASSWORD_FILE"),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="Authority that signed the broker's certificate.", envvar="STEMSHARE_CA_FILE"
        ),
    ] = None,
    certificate_file: Annotated[Path | None, typer.Option(help="Our own certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    allow_readable_keys: Annotated[
        bool, typer.Option(help="Use keys that other users of this machine can read.")
    ] = False,
) -> FleetLink:
    Topics(fleet)
    credentials = Credentials(
        user, password_file, ca_file, certificate_file, key_file, allow_readable_keys
    )
    return FleetLink(fleet, Link(parse_address(broker), credentials))


def to_a_fleet(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command with the options of a link in place of its argument `link`."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    added = inspect.signature(_options, eval_str=True).parameters.values()

    @wraps(command)
    def with_options(**given: Any) -> None:
        options = {p.name: given.pop(p.name) for p in added}
        command(link=_options(**options), **given)

    parameters = [p for p in (*own, *added) if p.name != "link"]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    with_options.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in keyword}
    return with_options
