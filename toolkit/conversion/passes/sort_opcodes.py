"""Sorts the kinds of operations by how often they are used: number 0 is not written."""

from __future__ import annotations

from collections import Counter

from toolkit.conversion.flatbuffer import Model


def sort_opcodes(model: Model) -> None:
    """Gives the most frequent kind of operation the number 0, and leaves out unused kinds."""
    operators = [operator for subgraph in model.subgraphs for operator in subgraph.operators]
    counted = Counter(operator.opcodeIndex for operator in operators)
    order = [index for index, _ in counted.most_common()]
    place = {index: number for number, index in enumerate(order)}
    model.operatorCodes = [model.operatorCodes[index] for index in order]
    for operator in operators:
        operator.opcodeIndex = place[operator.opcodeIndex]
