"""Rewrites the converter's flatbuffer: parsed, changed by every pass, and written again."""

from __future__ import annotations

from toolkit.conversion.flatbuffer import parse
from toolkit.conversion.packing import pack
from toolkit.conversion.passes import PASSES, Names, name_signatures


def rewrite(data: bytes, names: Names) -> bytes:
    """The same model in fewer bytes, with signatures under their true names."""
    model = parse(data)
    name_signatures(model, names)
    for change in PASSES:
        change(model)
    return pack(model, len(data))
