"""Chooses, for each node that has several formulations, the one to use in a runtime."""

from __future__ import annotations

from dataclasses import replace

from toolkit.autodiff.program import Node, Program

# Measured per layer shape, see docs/performance.md.
CONVOLUTIONS = {"ai-edge-litert": "products", "tflite-runtime": "convolution"}


def lower(program: Program, runtime: str) -> Program:
    """The program with every convolution's formulation written into its node."""
    return replace(program, nodes=tuple(_lower(node, runtime) for node in program.nodes))


def _lower(node: Node, runtime: str) -> Node:
    if node.op != "Conv2D":
        return node
    return replace(node, attrs={**node.attrs, "formulation": CONVOLUTIONS[runtime]})
