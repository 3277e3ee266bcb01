"""Recurrent layers, one step after the other: a list of operations has no loops.

The cost: operations, and so the time of an export and the size of a file, grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from toolkit.autodiff.nested_layers import nested_layers


@contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
    """Within it recurrent layers make no loops, and functions of TensorFlow's are called in place.

    The model is afterwards as it was.
    """
    with ExitStack() as stack:
        for layer in nested_layers(model):
            if isinstance(layer, keras.layers.RNN):
                stack.enter_context(_replaced(layer, "unroll", True))
                if hasattr(layer, "use_cudnn"):
                    stack.enter_context(_replaced(layer, "use_cudnn", False))
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        stack.callback(tf.config.run_functions_eagerly, before)
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
