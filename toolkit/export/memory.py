"""What a device process will take, estimated from the model alone, and what to do about it.

    peak ≈ process + runtime + game + file + COPIES · state + PACKING · activations

`state` is every variable: weights, optimiser slots, accumulated gradient, target network.
`activations` is what is alive at once in the arenas of one training step. The figures in capitals
were fitted to the peaks that `firmware_sim.measure --device` found for the zoo's ten branches and
several micro-batches in ai-edge-litert 2.3 on x86-64; the largest error was 10 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firmware_sim.limits import MIB
from firmware_sim.tasks.atari import OBSERVATION
from toolkit.export.flatbuffer import _bytes as tensor_bytes
from toolkit.export.flatbuffer import operation, parse
from toolkit.training.learning import DoubleQ
from toolkit.training.module import TrainingModule

PROCESS_MIB = 47.5  # Python, numpy and the agent with its MQTT client
RUNTIME_MIB = {"ai-edge-litert": 11.9, "tflite-runtime": 4.0}  # its library, and graphs as loaded
GAME_MIB = 12.9  # ale-py with two games, one of them a test
# The variables, the arenas of get_state and set_state, and a checkpoint on its way to the disk:
# as arrays, as parts and as one block.
COPIES = 6.5
PACKING = 1.16  # alignment, and what XNNPACK packs anew
RESERVE_MIB = 1  # of the cap: two runs of one process are not alike


@dataclass(frozen=True)
class MemoryEstimate:
    """The terms of the estimate, and their sum."""

    process_bytes: int
    runtime_bytes: int
    game_bytes: int
    file_bytes: int
    state_bytes: int
    activation_bytes: int
    peak_bytes: int


def estimate_memory(module: TrainingModule, model: bytes, runtime: str) -> MemoryEstimate:
    """The peak of a device that trains this converted model."""
    parsed = parse(model)
    alive = {
        s.signatureKey.decode(): alive_bytes(parsed, parsed.subgraphs[s.subgraphIndex])
        for s in parsed.signatureDefs
    }
    steps = ("accumulate", "step") if "step" in alive else ("train",)
    process = round(PROCESS_MIB * MIB)
    library = round(RUNTIME_MIB[runtime] * MIB)
    game = round(GAME_MIB * MIB) if plays(module) else 0
    state = 4 * sum(int(variable.shape.num_elements()) for variable in module.store.values())
    activations = sum(alive[name] for name in steps)
    return MemoryEstimate(
        process_bytes=process,
        runtime_bytes=library,
        game_bytes=game,
        file_bytes=len(model),
        state_bytes=state,
        activation_bytes=activations,
        peak_bytes=round(
            process + library + game + len(model) + COPIES * state + PACKING * activations
        ),
    )


def plays(module: TrainingModule) -> bool:
    """Whether the branch learns from Atari's frames, so that the device runs a game as well."""
    branch = module.branch
    return (
        isinstance(branch.learning, DoubleQ)
        and tuple(branch.input_shape) == OBSERVATION.shape
        and branch.input_dtype == OBSERVATION.dtype.name
    )


def alive_bytes(model: Any, subgraph: Any) -> int:
    """Most bytes that are alive at once, if every tensor lives from its making to its last use."""
    body: dict[int, int] = {}  # reshapes are views: the tensor whose memory each one uses
    first: dict[int, int] = {int(t): 0 for t in subgraph.inputs}
    last: dict[int, int] = {}
    for moment, operator in enumerate(subgraph.operators):
        taken = [int(t) for t in operator.inputs if t >= 0]
        for tensor in taken:
            last[body.get(tensor, tensor)] = moment
        for tensor in map(int, operator.outputs):
            if operation(model, operator) == "RESHAPE":
                body[tensor] = body.get(taken[0], taken[0])
            else:
                first[tensor] = last[tensor] = moment
    change = [0] * (len(subgraph.operators) + 2)
    end = len(subgraph.operators)
    for tensor in map(int, subgraph.outputs):
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
