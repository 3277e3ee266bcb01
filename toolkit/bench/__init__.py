"""Benchmarks: long-running comparisons, each a command of its own."""
