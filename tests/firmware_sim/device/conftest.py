"""The world that the tests of an agent share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firmware_sim.bundle.reader import Bundle
from tests.firmware_sim.device.world import World


@pytest.fixture
def world(digits_bundle: Bundle, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, digits_bundle)
    yield made
    made.end()
