"""The aggregator's numbers for Prometheus, over HTTP: `--metrics-port`.

What devices publish about themselves is told apart by the labels `device` and `profile`. A scrape
reads the last numbers that arrived; it waits for nobody, and the aggregator does not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from broker.errors import SettingsRefused
from broker.metrics import PREFIX

MOST_DEVICES = 2000
MOST_NUMBERS = 100  # of one device
LARGEST = 64 * 2**10  # bytes that a device's numbers may have
_LINE = re.compile(
    rf"{PREFIX}device_([a-z][a-z0-9_]{{0,60}})(\{{cause=\"([a-z_]{{1,40}})\"\}})? (\S{{1,40}})"
)
_REFUSED = re.compile(r'refused\{reason="([a-z-]+)"\}')


class Scraped:
    """A collector, as prometheus_client calls it: the newest numbers of everybody."""

    def __init__(self) -> None:
        self.aggregator: Mapping[str, float] = {}
        self._profiles: dict[str, str] = {}
        self._numbers: dict[str, dict[tuple[str, str], float]] = {}  # by device: (name, cause)

    def born(self, device: str, profile: str) -> None:
        if device in self._profiles or len(self._profiles) < MOST_DEVICES:
            self._profiles[device] = profile

    def gone(self, device: str) -> None:
        """The numbers of a device that is gone are not the newest of anything."""
        self._numbers.pop(device, None)
        self._profiles.pop(device, None)

    def metrics(self, device: str, payload: bytes) -> None:
        """Takes what a device publishes; lines that are no numbers are left out."""
        if device not in self._profiles or len(payload) > LARGEST:
            return
        found: dict[tuple[str, str], float] = {}
        for line in payload.decode("ascii", "replace").splitlines()[:MOST_NUMBERS]:
            if match := _LINE.fullmatch(line):
                try:
                    found[match[1], match[3] or ""] = float(match[4])
                except ValueError:
                    continue
        self._numbers[device] = found

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        refused = GaugeMetricFamily(f"{PREFIX}refused", "Refusals by reason.", labels=["reason"])
        for name, value in dict(self.aggregator).items():
            if match := _REFUSED.fullmatch(name):
                refused.add_metric([match[1]], value)
            else:
                yield GaugeMetricFamily(f"{PREFIX}{name}", "Of the aggregator.", value=value)
        yield refused
        families: dict[str, Any] = {}
        for device, numbers in dict(self._numbers).items():
            profile = self._profiles.get(device, "")
            for (name, cause), value in numbers.items():
                labels = ["device", "profile", *(["cause"] if cause else [])]
                full = f"{PREFIX}device_{name}"
                if full not in families:
                    families[full] = GaugeMetricFamily(full, "Of a device.", labels=labels)
                values = [device, profile, *([cause] if cause else [])]
                if len(values) == len(families[full]._labelnames):
                    families[full].add_metric(values, value)
        yield from families.values()


def serve_metrics(scraped: Scraped, port: int, host: str = "127.0.0.1") -> Any:
    """Serves the numbers until the returned server is shut down."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise SettingsRefused(
            "--metrics-port needs the package prometheus-client: pip install 'stemshare[broker]'."
        ) from None
    registry = CollectorRegistry()
    registry.register(scraped)
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SettingsRefused(
            f"--metrics-port {port} cannot be served at {host} ({error.strerror})."
        ) from None
    return server
