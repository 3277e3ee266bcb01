"""The device as part of an application: `from firmware_sim import Device`."""
