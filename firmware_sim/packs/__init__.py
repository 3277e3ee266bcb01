"""Packs: one signed file with all that a device needs; its format, check and installation."""
