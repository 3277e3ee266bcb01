"""Random numbers of dropout that can be begun anew: stream s of a model, for any s.

The runtime draws from Philox, with key = the draw's own `seed` and `seed2` in the upper half of
its counter, and keeps the lower half to itself. So the numbers of a run that was killed are lost,
unless training begins a stream of its own often enough: here with every round. Writing s over
`seed2` in the loaded file gives 2⁶³ streams per draw that never meet.
"""

from __future__ import annotations

import importlib
import struct

from firmware_sim.training.runtime import RUNTIMES, Model, choose_runtime
from toolkit.conversion.tflite_internals import schema

_SEED2 = 6  # offset of the field in the flatbuffer's table `RandomOptions`


class StreamedModel(Model):
    """A TFLite model whose random numbers can begin anew while all its variables stay."""

    def __init__(self, content: bytes, *, runtime: str | None = None) -> None:
        self.runtime = choose_runtime(runtime)
        self._module = importlib.import_module(RUNTIMES[self.runtime])
        self._content = bytearray(content)
        self._places = seed_places(self._content)
        self._load()

    def begin_stream(self, number: int) -> None:
        """From here on random numbers are those of this stream, from its beginning."""
        if self._places:
            state = self.call("get_state")
            for place in self._places:
                struct.pack_into("<q", self._content, place, number)
            self._load()
            self.call("set_state", **state)

    def _load(self) -> None:
        self._interpreter = self._module.Interpreter(
            model_content=bytes(self._content), num_threads=1
        )
        self._runners, self._inputs = {}, {}


def seed_places(content: bytearray) -> tuple[int, ...]:
    """Where in the file the `seed2` of each operation that draws is written."""
    model = schema.Model.GetRootAs(content, 0)
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    operators = [graph.Operators(i) for graph in graphs for i in range(graph.OperatorsLength())]
    tables = [
        operator.BuiltinOptions()
        for operator in operators
        if operator.BuiltinOptionsType() == schema.BuiltinOptions.RandomOptions
    ]
    return tuple({table.Pos + table.Offset(_SEED2) for table in tables})
