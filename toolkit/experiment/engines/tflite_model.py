"""A TFLite model whose dropout draws from numbered streams of random numbers.

The runtime draws from Philox. The key is the operation's `seed`; the upper half of the counter is
its `seed2`, the lower half counts the draws and is not accessible. A run that was killed would
therefore lose its position in the random numbers, unless every round uses a new stream. Writing
the number of the stream over `seed2` in the loaded file gives 2⁶³ streams that never overlap.
"""

from __future__ import annotations

import importlib
import struct

from firmware_sim.training.runtime import RUNTIMES, Model, choose_runtime
from toolkit.conversion.tflite_internals import schema

_SEED2 = 6  # offset of the field in the flatbuffer's table `RandomOptions`


class TFLiteModel(Model):
    """A loaded `model.tflite`; changing the random stream keeps all its variables."""

    def __init__(self, content: bytes, *, runtime: str | None = None) -> None:
        self.runtime = choose_runtime(runtime)
        self._module = importlib.import_module(RUNTIMES[self.runtime])
        self._content = bytearray(content)
        self._seed_positions = seed_positions(self._content)
        self._load()

    def use_random_stream(self, number: int) -> None:
        """From now on dropout draws the numbers of this stream, from its beginning."""
        if self._seed_positions:
            state = self.call("get_state")
            for position in self._seed_positions:
                struct.pack_into("<q", self._content, position, number)
            self._load()
            self.call("set_state", **state)

    def _load(self) -> None:
        self._interpreter = self._module.Interpreter(
            model_content=bytes(self._content), num_threads=1
        )
        self._runners, self._inputs = {}, {}


def seed_positions(content: bytearray) -> tuple[int, ...]:
    """Returns the offsets in the file of the `seed2` of every random operation."""
    model = schema.Model.GetRootAs(content, 0)
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    operators = [graph.Operators(i) for graph in graphs for i in range(graph.OperatorsLength())]
    tables = [
        operator.BuiltinOptions()
        for operator in operators
        if operator.BuiltinOptionsType() == schema.BuiltinOptions.RandomOptions
    ]
    return tuple({table.Pos + table.Offset(_SEED2) for table in tables})
