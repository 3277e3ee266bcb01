"""Fixtures of the scenarios: a broker, bundles, programs, devices in threads and a listener."""

from tests.harness.brokers import mosquitto, provisioned_mosquitto
from tests.harness.bundles import bundles
from tests.harness.programs import programs, topics
from tests.harness.scripted import scripted
from tests.harness.slices import small_slice
from tests.harness.watcher import watch, watcher

__all__ = [
    "bundles",
    "mosquitto",
    "programs",
    "provisioned_mosquitto",
    "scripted",
    "small_slice",
    "topics",
    "watch",
    "watcher",
]
