"""The time of every operation of a training step, measured separately.

Each distinct operation of a signature becomes a model of its own, with its constants, and is timed
in the runtime. Its inputs are then in the cache, and ai-edge-litert may run a chain of operations
faster than its parts, so the sum is close to the time of the step but not equal to it.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from rich.table import Table

from toolkit.conversion.flatbuffer import Model, Operator, Subgraph, operation, parse
from toolkit.conversion.tflite_internals import schema
from toolkit.fresh_process import report_of

# They cannot run without the variables that they name, and take no longer than a copy.
_VARIABLES = frozenset({"CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"})
_PARAMETRIC = ("TRANSPOSE", "SLICE", "PAD", "SUM")  # their second input is a parameter


@dataclass(frozen=True)
class Operation:
    """A distinct operation, and the number of times that a step computes it."""

    text: str  # such as `BATCH_MATMUL 1x2880x256 1x256x128 → 1x2880x128`
    count: int
    model: bytes

    @property
    def kind(self) -> str:
        return self.text.partition(" ")[0]


def split(model: bytes, signature: str = "train") -> list[Operation]:
    """Returns the distinct operations of a signature."""
    whole = parse(model)
    indices = {s.signatureKey.decode(): s.subgraphIndex for s in whole.signatureDefs}
    subgraph = whole.subgraphs[indices[signature]]
    alike: dict[str, list[Operator]] = defaultdict(list)
    for operator in subgraph.operators:
        if operation(whole, operator) not in _VARIABLES:
            alike[_text(whole, subgraph, operator)].append(operator)
    return [
        Operation(text, len(found), _alone(whole, subgraph, found[0]))
        for text, found in alike.items()
    ]


def time_operations(
    found: Iterable[Operation], folder: Path, *, runtime: str, threads: int
) -> dict[str, dict[str, Any]]:
    """Returns the seconds of each operation, by its text; measured in a separate process."""
    found = list(found)
    for number, one in enumerate(found):
        (folder / f"{number}.tflite").write_bytes(one.model)
    command = [sys.executable, "-m", "toolkit.bench.step.operation_process", str(folder)]
    command += [str(len(found)), runtime, str(threads)]
    seconds = report_of(command, failure=f"an operation does not run in {runtime}")["seconds"]
    return {
        one.text: {"kind": one.kind, "count": one.count, "seconds": each}
        for one, each in zip(found, seconds, strict=True)
    }


def tables(name: str, timed: dict[str, dict[str, Any]], longest: int = 8) -> list[Table]:
    """Returns two tables: times by kind, and the longest operations."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for entry in timed.values():
        kinds[entry["kind"]] += [entry["seconds"]] * entry["count"]
    total = sum(map(sum, kinds.values()))
    by_kind = Table(name, "how often", "together", "share")
    for kind, each in sorted(kinds.items(), key=lambda item: -sum(item[1]))[:longest]:
        share = f"{sum(each) / total:.0%}"
        by_kind.add_row(kind, str(len(each)), f"{sum(each) * 1e3:.2f} ms", share)
    by_kind.add_row("all", str(sum(map(len, kinds.values()))), f"{total * 1e3:.2f} ms", "")
    longest_first = sorted(timed.items(), key=lambda item: -item[1]["count"] * item[1]["seconds"])
    single = Table(f"{name}: the longest", "how often", "together")
    for text, entry in longest_first[:longest]:
        together = entry["count"] * entry["seconds"] * 1e3
        single.add_row(text, str(entry["count"]), f"{together:.2f} ms")
    return [by_kind, single]


def _text(model: Model, subgraph: Subgraph, operator: Operator) -> str:
    def shapes(tensors: Any) -> str:
        given = (subgraph.tensors[int(t)] for t in tensors if t >= 0)
        live = (t for t in given if not _stored(model, t))
        return " ".join("x".join(map(str, _shape(t))) or "1" for t in live)

    kind = operation(model, operator)
    words = [kind, shapes(operator.inputs), "→", shapes(operator.outputs)]
    if kind in _PARAMETRIC:
        data = _stored(model, subgraph.tensors[int(operator.inputs[1])])
        words.append(str(np.frombuffer(data, np.int32).tolist()))
    if operator.builtinOptions is not None:
        stated = {
            k: v for k, v in vars(operator.builtinOptions).items() if v not in (0, None, False)
        }
        words += [f"{key}={value}" for key, value in stated.items()]
    return " ".join(words)


def _alone(model: Model, subgraph: Subgraph, operator: Operator) -> bytes:
    """Returns a model of this operation only; the results of others become its inputs."""
    alone, graph = schema.ModelT(), schema.SubGraphT()
    alone.version, alone.buffers = 3, [schema.BufferT()]
    graph.tensors = []
    places: dict[int, int] = {}
    given: list[int] = []

    def placed(tensor: int) -> int:
        if tensor < 0 or tensor in places:
            return places.get(tensor, -1)
        moved = copy.copy(subgraph.tensors[tensor])
        moved.shape = np.array(_shape(moved), np.int32)
        data, moved.buffer = _stored(model, moved), 0
        places[tensor] = len(graph.tensors)
        if data:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(data, np.uint8)
            alone.buffers.append(buffer)
            moved.buffer = len(alone.buffers) - 1
        else:
            given.append(places[tensor])
        graph.tensors.append(moved)
        return places[tensor]

    only = copy.copy(operator)
    only.opcodeIndex = 0
    only.inputs = np.array([placed(int(t)) for t in operator.inputs], np.int32)
    graph.inputs = np.array(given, np.int32)
    only.outputs = graph.outputs = np.array([placed(int(t)) for t in operator.outputs], np.int32)
    graph.operators = [only]
    alone.operatorCodes = [model.operatorCodes[operator.opcodeIndex]]
    alone.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(alone.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _stored(model: Model, tensor: Any) -> bytes:
    data = model.buffers[tensor.buffer].data
    return b"" if data is None else np.asarray(data, np.uint8).tobytes()


def _shape(tensor: Any) -> tuple[int, ...]:
    return () if tensor.shape is None else tuple(int(n) for n in tensor.shape)
