"""One rule per operation; everything written here becomes TFLite builtin operations.

Inputs that are constants arrive as numpy arrays.
"""

from toolkit.autodiff.rules import (
    activations,
    arithmetic,
    convolution,
    depthwise,
    gathering,
    matmul,
    pooling,
    random,
    reductions,
    shapes,
)
from toolkit.autodiff.rules.rule import Pullbacks, Rule

RULES: dict[str, Rule] = {
    **arithmetic.RULES,
    **activations.RULES,
    **shapes.RULES,
    **gathering.RULES,
    **reductions.RULES,
    **matmul.RULES,
    **convolution.RULES,
    **depthwise.RULES,
    **pooling.RULES,
    **random.RULES,
}

__all__ = ["RULES", "Pullbacks", "Rule"]
