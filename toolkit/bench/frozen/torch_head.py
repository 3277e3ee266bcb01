"""The same head above the same frozen backbone in PyTorch, in an environment of its own.

    python -m toolkit.bench.frozen.torch_head STEPS THREADS

The backbone is MobileNetV2 of width 0.35 in evaluation mode without gradients, channels last, with
batch normalisation put into the convolutions.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from toolkit.bench.contest import BATCH
from toolkit.bench.step.timing import Batch, timed_steps

# Expansion, filters, repetitions and first stride of each stage, before the width.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
LAST = (6, 320, 1, 1)
WIDTH, SIDE, FEATURES = 0.35, 96, 1280


def run(steps: int, threads: int) -> dict[str, object]:
    import torch

    torch.set_num_threads(threads)
    backbone = _backbone().eval().to(memory_format=torch.channels_last)
    head = torch.nn.Linear(FEATURES, 4)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)

    def step(batch: Batch) -> float:
        x = torch.from_numpy(batch["x"]).permute(0, 3, 1, 2)
        with torch.inference_mode():
            features = backbone(x).mean((2, 3))
        optimizer.zero_grad(set_to_none=True)
        labels = torch.from_numpy(batch["y"]).long()
        loss = torch.nn.functional.cross_entropy(head(features.clone()), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    inputs = {"x": ((BATCH, SIDE, SIDE, 3), "float32"), "y": ((BATCH,), "int32")}
    return timed_steps(step, inputs, steps)


def _filters(number: float) -> int:
    """A multiple of 8 that is at most 10 % below the number times the width, as in Keras."""
    wanted = number * WIDTH
    found = max(8, int(wanted + 4) // 8 * 8)
    return found + 8 if found < 0.9 * wanted else found


def _backbone() -> Any:
    from torch import nn

    def convolution(inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> Any:
        """Batch normalisation is in its weights and bias already."""
        padding = size // 2
        return nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups)

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
            super().__init__()
            inner = inputs * expansion
            layers: list[Any] = []
            if expansion > 1:
                layers += [convolution(inputs, inner, 1, 1), nn.ReLU6(inplace=True)]
            layers += [convolution(inner, inner, 3, stride, inner), nn.ReLU6(inplace=True)]
            self.layers = nn.Sequential(*layers, convolution(inner, outputs, 1, 1))
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.adds else self.layers(x)

    channels = _filters(32)
    layers = [convolution(3, channels, 3, 2), nn.ReLU6(inplace=True)]
    for expansion, filters, repetitions, stride in (*STAGES, LAST):
        for number in range(repetitions):
            outputs = _filters(filters)
            layers.append(Block(channels, outputs, stride if number == 0 else 1, expansion))
            channels = outputs
    return nn.Sequential(*layers, convolution(channels, FEATURES, 1, 1), nn.ReLU6(inplace=True))


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
