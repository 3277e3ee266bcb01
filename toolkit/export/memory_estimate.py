"""What a device process will take, estimated from the model alone, and what to do about it.

    peak ≈ process + runtime + game + stream + file + 2 · state + PACKING · arenas

`state` is every variable: weights, optimiser slots, accumulated gradient, target network. It is
there twice when a checkpoint is written: in the runtime, and as arrays on their way to the disk.
Every signature keeps an arena of its own once it was called, so `arenas` adds up, over all that a
device calls, what is alive at once in each; get_state and set_state hold all of the state there.

The figures in capitals were fitted to the peaks that `firmware_sim.measure --device` found for five
of the zoo's branches in micro-batches of 4 and 32, in tflite-runtime 2.14 and ai-edge-litert 2.3,
with one thread on x86-64; the largest error was 8 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firmware_sim.playing.environments.atari import OBSERVATION
from firmware_sim.training.limits import MIB
from toolkit.branch.learning import DoubleQ
from toolkit.conversion.flatbuffer import operation, parse, tensor_bytes
from toolkit.export.predict import predicted_weights
from toolkit.training.module import TrainingModule

PROCESS_MIB = 42.3  # Python, numpy and the agent with its MQTT client
RUNTIME_MIB = {"ai-edge-litert": 15, "tflite-runtime": 10}  # its library, and graphs as loaded
STREAM_MIB = 4.2  # of branches that learn from examples: the store, and a program that predicts
GAME_MIB = 15  # ale-py with two games, one of them a test, and mini-batches of frames
PACKING = 1.2  # alignment, and what kernels pack and keep
RESERVE_MIB = 1  # of the cap: two runs of one process are not alike

# What a device calls beside its training steps; not every model has all of them.
_CALLED = (
    "infer",
    "evaluate",
    "get_shared",
    "set_shared",
    "get_state",
    "set_state",
    "sync_target",
)


@dataclass(frozen=True)
class MemoryEstimate:
    """The terms of the estimate, and their sum."""

    process_bytes: int
    runtime_bytes: int
    game_bytes: int
    stream_bytes: int
    file_bytes: int
    state_bytes: int
    arena_bytes: int
    peak_bytes: int


def estimate_memory(
    module: TrainingModule, model: bytes, runtime: str, prefix: bytes = b""
) -> MemoryEstimate:
    """The peak of a device that trains this converted model, with its prefix if it has one."""
    parsed = parse(model)
    alive = {
        s.signatureKey.decode(): alive_bytes(
            parsed, parsed.subgraphs[s.subgraphIndex], delegated=runtime == "ai-edge-litert"
        )
        for s in parsed.signatureDefs
    }
    steps = ("accumulate", "step") if "step" in alive else ("train",)
    process = round(PROCESS_MIB * MIB)
    library = round(RUNTIME_MIB[runtime] * MIB)
    game = round(GAME_MIB * MIB) if plays(module) else 0
    state = 4 * sum(int(variable.shape.num_elements()) for variable in module.store.values())
    weights = 4 * sum(math.prod(module.state_shapes[n]) for n in predicted_weights(module))
    learns = module.branch.target is not None
    stream = round(STREAM_MIB * MIB) + 2 * weights if learns else 0
    arenas = sum(alive.get(name, 0) for name in (*steps, *_CALLED))
    if prefix:
        arenas += alive_bytes(parsed := parse(prefix), parsed.subgraphs[0], delegated=True)
    files = len(model) + 2 * len(prefix)  # kernels keep the constants of a prefix packed as well
    return MemoryEstimate(
        process_bytes=process,
        runtime_bytes=library,
        game_bytes=game,
        stream_bytes=stream,
        file_bytes=files,
        state_bytes=state,
        arena_bytes=arenas,
        peak_bytes=round(process + library + game + stream + files + 2 * state + PACKING * arenas),
    )


def plays(module: TrainingModule) -> bool:
    """Whether the branch learns from Atari's frames, so that the device runs a game as well."""
    branch = module.branch
    return (
        isinstance(branch.learning, DoubleQ)
        and tuple(branch.input_shape) == OBSERVATION.shape
        and branch.input_dtype == OBSERVATION.dtype.name
    )


def alive_bytes(model: Any, subgraph: Any, *, delegated: bool = False) -> int:
    """Most bytes that are alive at once, if every tensor lives from its making to its last use.

    Beside the tensors there is what a convolution gathers while it runs. A delegate takes nearly
    the whole graph as one, so variables are assigned when all of it has run.
    """
    body: dict[int, int] = {}  # reshapes are views: the tensor whose memory each one uses
    first: dict[int, int] = {int(t): 0 for t in subgraph.inputs}
    last: dict[int, int] = {}
    change = [0] * (len(subgraph.operators) + 2)
    for moment, operator in enumerate(subgraph.operators):
        taken = [int(t) for t in operator.inputs if t >= 0]
        for tensor in taken:
            last[body.get(tensor, tensor)] = moment
        for tensor in map(int, operator.outputs):
            if operation(model, operator) == "RESHAPE":
                body[tensor] = body.get(taken[0], taken[0])
            else:
                first[tensor] = last[tensor] = moment
        if operation(model, operator) == "CONV_2D":
            gathered = _columns_bytes(subgraph, operator)
            change[moment] += gathered
            change[moment + 1] -= gathered
    end = len(subgraph.operators)
    kept = list(subgraph.outputs)
    if delegated:
        assigns = (o for o in subgraph.operators if operation(model, o) == "ASSIGN_VARIABLE")
        kept += [o.inputs[1] for o in assigns]
    for tensor in map(int, kept):
        last[body.get(tensor, tensor)] = end
    for tensor, begun in first.items():
        size = tensor_bytes(model, subgraph.tensors[tensor])
        change[begun] += size
        change[last.get(tensor, begun) + 1] -= size
    most = now = 0
    for difference in change:
        now += difference
        most = max(most, now)
    return most


def _columns_bytes(subgraph: Any, operator: Any) -> int:
    """im2col of the builtin kernel: for each output pixel, all input pixels under the kernel."""
    _, height, width, channels = map(int, subgraph.tensors[operator.inputs[1]].shape)
    if height * width == 1:
        return 0
    pixels = math.prod(map(int, subgraph.tensors[operator.outputs[0]].shape[:3]))
    return 4 * pixels * height * width * channels  # float32


def fits(peak_bytes: int, memory_cap_mib: int) -> bool:
    return peak_bytes <= (memory_cap_mib - RESERVE_MIB) * MIB


def largest_micro_batch(batch: int, attempt: Callable[[int], bool]) -> int | None:
    """The largest divisor below `batch` that `attempt` finds to fit, if 1 does.

    Memory grows with the micro-batch, so after 1 the divisors are halved, not all tried.
    """
    sizes = [size for size in range(1, batch) if batch % size == 0]
    if not sizes or not attempt(1):
        return None
    fitting, failing = 0, len(sizes)
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if attempt(sizes[middle]):
            fitting = middle
        else:
            failing = middle
    return sizes[fitting]
