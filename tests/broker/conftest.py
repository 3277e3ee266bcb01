"""Brokers that run while a test does."""

from tests.harness.brokers import embedded_broker, mosquitto

__all__ = ["embedded_broker", "mosquitto"]
