"""A broker on this machine for the duration of a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from broker.brokers.embedded import EmbeddedBroker
from broker.brokers.mosquitto_process import Mosquitto, mosquitto_path
from broker.transport.address import Address


@contextlib.contextmanager
def local_broker(folder: Path, *, embedded: bool = False) -> Iterator[Address]:
    """Yields the address of mosquitto if it is installed, otherwise of the embedded broker."""
    if embedded or mosquitto_path() is None:
        with EmbeddedBroker() as broker:
            yield broker.address
    else:
        with Mosquitto(folder) as broker:
            yield broker.address
