"""Bytes and texts of a sensor made into examples; no I/O here."""
