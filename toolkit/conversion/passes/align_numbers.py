"""Numbers tensors so that what two signatures both compute has the same number in both.

`train` and `accumulate` share most of their operations, which then can be written once. Equal
constants become one tensor on the way, and unused tensors go. What a small signature has gets a
low number, for a number that it leaves out takes an empty tensor; a few of those are cheaper
than operations that are written twice. Signatures of about the same size have all tensors of
each other, and so one list of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.conversion.flatbuffer import Model, Subgraph, content, operation
from toolkit.conversion.tflite_internals import schema

# A signature with more than this part of the tensors of the largest one gets the list of all.
_SIMILAR_SIZE = 0.7
_EMPTY = schema.TensorT()  # of no operation; a runtime gives it no memory


def align_numbers(model: Model) -> None:
    """Renumbers the tensors of every subgraph, and the references to them."""
    largest_first = sorted(
        range(len(model.subgraphs)), key=lambda i: -len(model.subgraphs[i].tensors)
    )
    known: dict[Any, int] = {}
    meant = {i: _meanings(model, model.subgraphs[i], known) for i in largest_first}
    most = len(set(meant[largest_first[0]].values()))
    tensors: dict[int, Any] = {}  # by meaning
    smallest: dict[int, int] = {}  # by meaning: the tensors of the smallest signature that has it
    for index in largest_first:
        size = len(set(meant[index].values()))
        for tensor, meaning in meant[index].items():
            tensors[meaning] = model.subgraphs[index].tensors[tensor]
            smallest[meaning] = min(smallest.get(meaning, size), size)
    alike = [i for i in largest_first if len(set(meant[i].values())) > most * _SIMILAR_SIZE]
    common = dict.fromkeys(meaning for i in alike for meaning in meant[i].values())
    numbers = {m: n for n, m in enumerate(sorted(common, key=smallest.__getitem__))}
    for index in largest_first:
        if index in alike:
            order = numbers
        else:
            found = dict.fromkeys(meant[index].values())
            room = range(len(found) * 5 // 4)
            order = {m: numbers[m] for m in found if m in numbers and numbers[m] in room}
            free = sorted(set(room) - set(order.values()))
            new = sorted((m for m in found if m not in order), key=smallest.__getitem__)
            order |= dict(zip(new, free, strict=False))
        by_number = {number: tensors[meaning] for meaning, number in order.items()}
        listed = [by_number.get(number, _EMPTY) for number in range(max(by_number, default=-1) + 1)]
        _renumber(model, index, {t: order[m] for t, m in meant[index].items()}, listed)


def _meanings(model: Model, subgraph: Subgraph, known: dict[Any, int]) -> dict[int, int]:
    """Returns a number for each used tensor; equal numbers mean the same computation.

    Variables come first, since every signature has them.
    """
    meant: dict[int, int] = {}
    seen: set[int] = set()

    def meaning(*structure: Any) -> int:
        return known.setdefault(structure, len(known))

    for position, tensor in enumerate(subgraph.inputs):
        meant[int(tensor)] = meaning("input", position, content(subgraph.tensors[tensor]))
    ranks = {"VAR_HANDLE": 0, "READ_VARIABLE": 1}
    for operator in sorted(subgraph.operators, key=lambda o: ranks.get(operation(model, o), 2)):
        for tensor in operator.inputs:
            if tensor >= 0 and int(tensor) not in meant:
                meant[int(tensor)] = meaning("constant", content(subgraph.tensors[tensor]))
        sources = tuple(meant.get(int(t), -1) for t in operator.inputs)
        same = (operator.opcodeIndex, content(operator.builtinOptions), sources)
        for position, tensor in enumerate(operator.outputs):
            # The same computation twice in a subgraph (two draws, two reads) is two tensors.
            times = 0
            while (found := meaning("result", *same, position, times)) in seen:
                times += 1
            meant[int(tensor)] = found
            seen.add(found)
    for tensor in subgraph.outputs:
        if int(tensor) not in meant:
            meant[int(tensor)] = meaning("constant", content(subgraph.tensors[tensor]))
    return meant


def _renumber(model: Model, index: int, order: Mapping[int, int], tensors: Sequence[Any]) -> None:
    subgraph = model.subgraphs[index]

    def renumbered(tensors: Any) -> Any:
        return np.array([order[int(t)] if t >= 0 else t for t in tensors], np.int32)

    subgraph.tensors = list(tensors)
    subgraph.inputs, subgraph.outputs = renumbered(subgraph.inputs), renumbered(subgraph.outputs)
    for operator in subgraph.operators:
        operator.inputs = renumbered(operator.inputs)
        operator.outputs = renumbered(operator.outputs)
    for signature in model.signatureDefs:
        if signature.subgraphIndex == index:
            for entry in [*(signature.inputs or []), *(signature.outputs or [])]:
                entry.tensorIndex = order[entry.tensorIndex]
