"""Brokers that run while a test does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.brokers.embedded import EmbeddedBroker
from broker.brokers.mosquitto_process import Mosquitto


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """Open to everybody, without persistence, and with no limit that it would tell."""
    with Mosquitto(tmp_path / "mosquitto") as running:
        yield running


@pytest.fixture
def embedded_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
