"""Whole members of a fleet as targets: a device and an aggregator, sent damaged messages."""
