"""Equal tensors, operations and names are written once, and referred to from everywhere."""

from __future__ import annotations

from typing import Any

from toolkit.conversion.flatbuffer import Model, content


def share_tables(model: Model) -> None:
    """Replaces equal parts of the model by one part that is packed once."""
    once: dict[Any, _WrittenOnce] = {}

    def shared(item: Any) -> _WrittenOnce:
        return once.setdefault(content(item), _WrittenOnce(item))

    for subgraph in model.subgraphs:
        subgraph.tensors = [shared(tensor) for tensor in subgraph.tensors]
        subgraph.operators = [shared(operator) for operator in subgraph.operators]
    for signature in model.signatureDefs:
        signature.inputs = [shared(entry) for entry in signature.inputs or []]
        signature.outputs = [shared(entry) for entry in signature.outputs or []]
    for part in list(once.values()):
        options = getattr(part.item, "builtinOptions", None)
        if options is not None:
            part.item.builtinOptions = shared(options)


class _WrittenOnce:
    """Packs its item the first time, and afterwards returns where it is."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.place: int | None = None

    def Pack(self, builder: Any) -> int:  # noqa: N802
        if self.place is None:
            self.place = self.item.Pack(builder)
        return self.place
