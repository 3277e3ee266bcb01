"""Leaves out the options of operations that have the values which a runtime assumes anyway."""

from __future__ import annotations

from toolkit.conversion.flatbuffer import Model
from toolkit.conversion.tflite_internals import schema

# Options whose fields are zero where nothing is written; the fields named here do not matter to
# operations on floats.
_IGNORED_FIELDS: dict[type, tuple[str, ...]] = {
    schema.AddOptionsT: ("potScaleInt16",),
    schema.SubOptionsT: ("potScaleInt16",),
    schema.MulOptionsT: (),
    schema.DivOptionsT: (),
    schema.BatchMatMulOptionsT: ("asymmetricQuantizeInputs",),
    schema.ConcatenationOptionsT: (),
    schema.ReducerOptionsT: (),
}


def drop_default_options(model: Model) -> None:
    """Removes options of which every field has its default."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            options = operator.builtinOptions
            ignored = _IGNORED_FIELDS.get(type(options))
            if ignored is not None and not any(
                value for name, value in vars(options).items() if name not in ignored
            ):
                operator.builtinOptions, operator.builtinOptionsType = None, 0
