"""Fuzzing: damaged and invented input for every parser, and for whole parties of a fleet."""
