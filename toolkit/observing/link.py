"""How a broker is reached."""

from __future__ import annotations

from dataclasses import dataclass

from broker.transport.address import Address, Credentials


@dataclass(frozen=True)
class Link:
    """The address of a broker, and who logs in there."""

    address: Address
    credentials: Credentials
