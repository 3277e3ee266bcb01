"""Metrics as Prometheus reads them."""

from __future__ import annotations

from broker.metrics import PREFIX


def read_metrics(payload: bytes) -> dict[str, float]:
    """Returns values by name, without the prefix of the project."""
    pairs = (line.removeprefix(PREFIX).rpartition(" ") for line in payload.decode().splitlines())
    return {name: float(value) for name, _, value in pairs}
