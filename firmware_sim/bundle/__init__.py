"""The bundle, as a device reads it."""
