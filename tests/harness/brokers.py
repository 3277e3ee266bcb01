"""Real brokers that run while a test does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.brokers.embedded import EmbeddedBroker
from broker.brokers.mosquitto_process import Mosquitto


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker of this test's own, open to everybody, without persistence."""
    with Mosquitto(tmp_path / "mosquitto") as running:
        yield running


@pytest.fixture
def embedded_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="session")
def provisioned_mosquitto() -> Callable[[Path], Mosquitto]:
    """The real broker with a provisioned folder's settings, but on loopback alone."""

    def make(folder: Path) -> Mosquitto:
        text = (folder / "mosquitto.conf").read_text(encoding="utf-8")
        text = re.sub(r"^listener .*", "", text, flags=re.MULTILINE)
        paths = r"^(password_file|acl_file|plugin_opt_config_file|persistence_location|cafile"
        paths += r"|certfile|keyfile) "
        text = re.sub(paths, rf"\g<0>{folder}/", text, flags=re.MULTILINE)
        return Mosquitto(folder / "loopback", extra=text)

    return make
