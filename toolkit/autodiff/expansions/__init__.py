"""Operations written in basic ones, those that have a rule: one entry for each.

What can be said so needs no gradient of its own, no counterpart in ONNX and no count.
"""

from toolkit.autodiff.expansions import (
    convolutions,
    elementwise,
    gathering,
    moving,
    products,
    reductions,
    resizing,
    slicing,
    volumes,
)
from toolkit.autodiff.expansions.call import Call, Expansion

EXPANSIONS: dict[str, Expansion] = {
    **elementwise.EXPANSIONS,
    **reductions.EXPANSIONS,
    **moving.EXPANSIONS,
    **slicing.EXPANSIONS,
    **gathering.EXPANSIONS,
    **products.EXPANSIONS,
    **convolutions.EXPANSIONS,
    **volumes.EXPANSIONS,
    **resizing.EXPANSIONS,
}

__all__ = ["EXPANSIONS", "Call", "Expansion"]
