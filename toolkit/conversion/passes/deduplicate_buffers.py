"""Stores equal constants once.

The converter stores the target network a second time, for example.
"""

from __future__ import annotations

import numpy as np

from toolkit.conversion.flatbuffer import Model


def deduplicate_buffers(model: Model) -> None:
    """Equal constants share one buffer; tensors without data or use share the empty buffer 0."""
    numbers: dict[bytes, int] = {b"": 0}
    kept = [model.buffers[0]]

    def number(index: int) -> int:
        data = model.buffers[index].data
        content = b"" if data is None else np.asarray(data, np.uint8).tobytes()
        if content not in numbers:
            numbers[content] = len(kept)
            kept.append(model.buffers[index])
        return numbers[content]

    for subgraph in model.subgraphs:
        used = {int(t) for operator in subgraph.operators for t in operator.inputs}
        used.update(map(int, subgraph.outputs))
        for index, tensor in enumerate(subgraph.tensors):
            tensor.buffer = number(tensor.buffer) if index in used else 0
    model.buffers = kept
