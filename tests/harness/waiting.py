"""Waiting for something that happens elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

PATIENCE = 60.0  # seconds until a test gives up; nothing takes that long
T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """Returns the first true result of `condition`; the test fails if there is none in time."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:g} s in vain: {what}")
        time.sleep(0.005)
    return found
