"""The same training step in PyTorch, channels last; in an environment of its own with torch.

    python -m toolkit.bench.step.torch_step NETWORK.json STEPS THREADS

NETWORK.json is the result of `describe` for a branch whose layers form a chain. This module loads
TensorFlow and Keras only to describe a branch.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench.step.timing import Batch, timed_steps

if TYPE_CHECKING:
    from toolkit.branch.branch import Branch

Layer = dict[str, Any]


def describe(branch: Branch, batch: int) -> dict[str, Any] | None:
    """Returns a chain of layers with its optimiser and inputs; None if the branch is no chain."""
    from toolkit.branch.learning import DoubleQ
    from toolkit.training.inputs import training_inputs

    learning = branch.learning
    layers = [_layer(layer) for layer in branch.model.layers if type(layer).__name__ != "Add"]
    if len(layers) < len(branch.model.layers):
        return None
    inputs = training_inputs(branch, batch).items()
    return {
        "input_shape": list(branch.input_shape),
        "input_scale": branch.input_scale,
        "layers": [layer for layer in layers if layer["kind"] != "InputLayer"],
        "double_q": isinstance(learning, DoubleQ),
        "discount": learning.discount if isinstance(learning, DoubleQ) else None,
        "optimizer": {"kind": type(learning.optimizer).__name__, **vars(learning.optimizer)},
        "inputs": {name: [list(s.shape), s.dtype.as_numpy_dtype().dtype.str] for name, s in inputs},
    }


def _layer(layer: Any) -> Layer:
    config = layer.get_config()
    keys = ("filters", "kernel_size", "strides", "padding", "units", "rate", "pool_size")
    activation = config.get("activation") or "linear"
    return {
        "kind": type(layer).__name__,
        "activation": activation,
        **{key: config[key] for key in keys if key in config},
    }


def run(network: dict[str, Any], steps: int, threads: int) -> dict[str, object]:
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    online = _network(network).to(memory_format=torch.channels_last)
    target = copy.deepcopy(online)
    optimizer = _optimizer(network["optimizer"], online.parameters())

    def frames(x: Any) -> Any:
        """Returns a view of [n, h, w, c] as [n, c, h, w], without a copy."""
        return torch.from_numpy(x).permute(0, 3, 1, 2).float() * network["input_scale"]

    def loss(batch: Batch) -> Any:
        if not network["double_q"]:
            labels = torch.from_numpy(batch["y"]).long()
            return nn.functional.cross_entropy(online(frames(batch["x"])), labels)
        ahead = frames(batch["next_obs"])
        with torch.no_grad():
            best = online(ahead).argmax(1, keepdim=True)
            future = target(ahead).gather(1, best)[:, 0]
            continues = 1.0 - torch.from_numpy(batch["done"])
            wanted = torch.from_numpy(batch["reward"]) + network["discount"] * continues * future
        actions = torch.from_numpy(batch["action"]).long()[:, None]
        return nn.functional.huber_loss(
            online(frames(batch["obs"])).gather(1, actions)[:, 0], wanted
        )

    def step(batch: Batch) -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss(batch)
        found.backward()
        optimizer.step()
        return float(found)

    specs = {name: (tuple(shape), dtype) for name, (shape, dtype) in network["inputs"].items()}
    return timed_steps(step, specs, steps)


def _network(network: dict[str, Any]) -> Any:
    """Returns the network; a final softmax is left out, because cross-entropy takes logits."""
    from torch import nn

    parts: list[Any] = []
    for layer in network["layers"]:
        match layer["kind"]:
            case "Conv2D":
                padding = "same" if layer["padding"] == "same" else 0
                shape = layer["filters"], layer["kernel_size"], layer["strides"]
                parts.append(nn.LazyConv2d(*shape, padding=padding))
            case "Dense":
                parts.append(nn.LazyLinear(layer["units"]))
            case "MaxPooling2D":
                parts.append(nn.MaxPool2d(layer["pool_size"], layer["strides"]))
            case "Dropout":
                parts.append(nn.Dropout(layer["rate"]))
            case "Flatten":
                parts.append(nn.Flatten())
        if layer["activation"] == "relu":
            parts.append(nn.ReLU())
    made = nn.Sequential(*parts)
    import torch

    height, width, channels = network["input_shape"]
    made(torch.zeros(1, channels, height, width))
    return made


def _optimizer(options: dict[str, Any], parameters: Any) -> Any:
    import torch

    if options["kind"] == "Adam":
        betas = options["beta_1"], options["beta_2"]
        return torch.optim.Adam(parameters, options["learning_rate"], betas, options["epsilon"])
    return torch.optim.RMSprop(
        parameters, options["learning_rate"], options["rho"], options["epsilon"]
    )


if __name__ == "__main__":
    file, step_count, thread_count = sys.argv[1:]
    network = json.loads(Path(file).read_text())
    print(json.dumps(run(network, int(step_count), int(thread_count))))
