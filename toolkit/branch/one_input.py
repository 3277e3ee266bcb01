"""A network of several inputs as a branch: one example is one row of numbers.

    row = [input 1, flattened | input 2, flattened | …]        in the order of `model.inputs`

Stores, files, sensors and packs know an example as one array; this keeps it so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt

from toolkit.errors import ModelError

Array = npt.NDArray[np.generic]


def one_input(model: keras.Model) -> keras.Model:
    """The network behind a cut of the row; inside it stays as it is, under its own name.

    It is compiled if the network is.
    """
    shapes = _shapes(model)
    sizes = [math.prod(shape) for shape in shapes]
    bounds = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    row = keras.Input((sum(sizes),), name="row")
    parts = [
        keras.layers.Reshape(shape)(row[:, start:end])
        for shape, (start, end) in zip(shapes, bounds, strict=True)
    ]
    found = keras.Model(row, model(parts))
    if model.compiled:
        found.compile_from_config(model.get_compile_config())
    return found


def as_rows(model: keras.Model, inputs: Sequence[Array]) -> npt.NDArray[np.float32]:
    """Examples of the network as rows, for the array x of an .npz file."""
    shapes = _shapes(model)
    if [x.shape[1:] for x in inputs] != shapes or len({len(x) for x in inputs}) != 1:
        given = ", ".join(str(list(x.shape)) for x in inputs)
        raise ModelError(f"the examples have the shapes {given}; the network takes {shapes}.")
    rows = [x.reshape(len(x), -1).astype(np.float32) for x in inputs]
    return np.concatenate(rows, axis=1)


def _shapes(model: keras.Model) -> list[tuple[int, ...]]:
    """Of one example."""
    shapes = [tuple(x.shape[1:]) for x in model.inputs]
    if any(None in shape for shape in shapes):
        raise ModelError(f"the network takes {shapes}; every input must have a fixed shape.")
    return shapes
