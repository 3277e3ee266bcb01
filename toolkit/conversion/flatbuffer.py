"""Rewrites the converter's flatbuffer: small on disk, and small in memory when it runs.

The converter stores every zero of the optimiser's slots, the target network a second time, and
long names; and it computes what the backward pass needs long before. Each pass here is one
function on the parsed model; none of them changes what the model computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from toolkit.conversion.schedule import Task, schedule

Model = Any  # schema.ModelT, generated and untyped
Subgraph = Any
Operator = Any

_ALIKE = 0.7  # of the largest signature's tensors: so many others may do without
_SMALL = 16  # bytes of a constant that no kernel reads as a vector
_FILL_FROM = 64  # bytes; below that a stored zero is smaller than the operation that makes it


def rewrite(data: bytes, names: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]) -> bytes:
    """All passes; `names` gives, per signature, the true names of its inputs and outputs."""
    model = parse(data)
    name_signatures(model, names)
    for subgraph in model.subgraphs:
        fill_zeros(model, subgraph)
        reorder(model, subgraph)
    drop_labels(model)
    drop_plain_options(model)
    state_shapes(model)
    store_buffers_once(model)
    number_alike(model)
    sort_operations(model)
    share_tables(model)
    builder = _SharingBuilder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def parse(data: bytes) -> Model:
    """The model; options are plain values, which can be compared, so no arrays."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            options = operator.builtinOptions
            if isinstance(options, schema.ReshapeOptionsT) and options.newShape is not None:
                options.newShape = tuple(map(int, options.newShape))
    return model


def name_signatures(
    model: Model, names: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]
) -> None:
    for signature in model.signatureDefs:
        inputs, outputs = names[signature.signatureKey.decode()]
        for tensor in signature.inputs or []:
            tensor.name = inputs[tensor.name.decode()]
        for tensor in signature.outputs or []:
            tensor.name = outputs[tensor.name.decode()]


def reorder(model: Model, subgraph: Subgraph) -> None:
    """Runs operations in the order that keeps the fewest bytes alive.

    The converter computes what the backward pass needs together with the forward pass.
    """
    tasks = []
    for operator in subgraph.operators:
        kind = operation(model, operator)
        handles = [int(t) for t in operator.inputs[:1]] if kind in _VARIABLES else []
        tasks.append(
            Task(
                inputs=tuple(int(t) for t in operator.inputs if t >= 0),
                outputs=tuple(int(t) for t in operator.outputs),
                reads=tuple(handles) if kind == "READ_VARIABLE" else (),
                writes=tuple(handles) if kind == "ASSIGN_VARIABLE" else (),
                in_place=kind == "RESHAPE",
                first=kind in ("CALL_ONCE", "VAR_HANDLE"),
            )
        )
    sizes = [tensor_bytes(model, tensor) for tensor in subgraph.tensors]
    order = schedule(tasks, sizes)
    subgraph.operators = [subgraph.operators[i] for i in order]


def tensor_bytes(model: Model, tensor: Any) -> int:
    """What a tensor takes while it lives; constants stay in the file."""
    data = model.buffers[tensor.buffer].data
    if data is not None and len(data):
        return 0
    shape = () if tensor.shape is None else tensor.shape
    return int(np.prod(shape, dtype=np.int64)) * _WIDTHS.get(tensor.type, 4)


def fill_zeros(model: Model, subgraph: Subgraph) -> None:
    """Makes stored zeros that a variable starts from when the model is loaded."""
    made: list[Operator] = []
    filled: dict[int, int] = {}
    for operator in subgraph.operators:
        if operation(model, operator) != "ASSIGN_VARIABLE":
            continue
        constant = int(operator.inputs[1])
        tensor = subgraph.tensors[constant]
        data = model.buffers[tensor.buffer].data
        if data is None or len(data) < _FILL_FROM or np.any(np.asarray(data)):
            continue
        if constant not in filled:
            shape = np.asarray(tensor.shape, np.int32)
            inputs = [
                _constant(model, subgraph, shape, schema.TensorType.INT32),
                _constant(model, subgraph, np.float32(0.0), schema.TensorType.FLOAT32),
            ]
            tensor.buffer = 0
            filled[constant] = constant
            made.append(_operator(model, schema.BuiltinOperator.FILL, inputs, [constant]))
        operator.inputs = np.array([operator.inputs[0], filled[constant]], np.int32)
    subgraph.operators = made + list(subgraph.operators)


def drop_labels(model: Model) -> None:
    """Names, empty records and metadata that no runtime reads."""
    model.description = model.metadata = model.metadataBuffer = None
    for buffer in model.buffers:
        if buffer.data is not None and len(buffer.data) == 0:
            buffer.data = None
    for subgraph in model.subgraphs:
        subgraph.name = None
        for tensor in subgraph.tensors:
            tensor.name = None
            tensor.hasRank = False  # all shapes are known
            quantization = tensor.quantization
            if quantization is not None and quantization.scale is None:
                tensor.quantization = None
        for operator in subgraph.operators:
            if operator.builtinOptions is not None and not vars(operator.builtinOptions):
                operator.builtinOptions, operator.builtinOptionsType = None, 0


def drop_plain_options(model: Model) -> None:
    """Options that say what a runtime assumes without them."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            options = operator.builtinOptions
            ignored = _IGNORED_OPTIONS.get(type(options))
            if ignored is not None and not any(
                value for name, value in vars(options).items() if name not in ignored
            ):
                operator.builtinOptions, operator.builtinOptionsType = None, 0


def state_shapes(model: Model) -> None:
    """A reshape's target as its option: no constant, and the vector is there as a shape already."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            shape = subgraph.tensors[operator.outputs[0]].shape if len(operator.outputs) else None
            if operation(model, operator) != "RESHAPE" or shape is None or not len(shape):
                continue
            operator.inputs = operator.inputs[:1]
            operator.builtinOptions = schema.ReshapeOptionsT()
            operator.builtinOptions.newShape = shape
            operator.builtinOptionsType = schema.BuiltinOptions.ReshapeOptions


def sort_operations(model: Model) -> None:
    """The most frequent kind of operation first: number 0 is not written."""
    operators = [operator for subgraph in model.subgraphs for operator in subgraph.operators]
    counted = Counter(operator.opcodeIndex for operator in operators)
    order = [index for index, _ in counted.most_common()]
    place = {index: number for number, index in enumerate(order)}
    model.operatorCodes = [model.operatorCodes[index] for index in order]
    for operator in operators:
        operator.opcodeIndex = place[operator.opcodeIndex]


def store_buffers_once(model: Model) -> None:
    """Equal constants share one buffer; tensors without data or use share the empty buffer 0."""
    numbers: dict[bytes, int] = {b"": 0}
    kept = [model.buffers[0]]

    def number(index: int) -> int:
        data = model.buffers[index].data
        content = b"" if data is None else np.asarray(data, np.uint8).tobytes()
        if content not in numbers:
            numbers[content] = len(kept)
            kept.append(model.buffers[index])
        return numbers[content]

    for subgraph in model.subgraphs:
        used = {int(t) for operator in subgraph.operators for t in operator.inputs}
        used.update(map(int, subgraph.outputs))
        for index, tensor in enumerate(subgraph.tensors):
            tensor.buffer = number(tensor.buffer) if index in used else 0
    model.buffers = kept


def number_alike(model: Model) -> None:
    """Numbers tensors so that what two signatures both compute has the same number in both.

    `train` and `accumulate` share most of their operations, which then can be written once. Equal
    constants become one tensor on the way, and unused tensors go. What a small signature has gets a
    low number, for a number that it leaves out takes an empty tensor; a few of those are cheaper
    than operations that are written twice. Signatures of about the same size have all tensors of
    each other, and so one list of them.
    """
    largest_first = sorted(
        range(len(model.subgraphs)), key=lambda i: -len(model.subgraphs[i].tensors)
    )
    known: dict[Any, int] = {}
    meant = {i: _meanings(model, model.subgraphs[i], known) for i in largest_first}
    most = len(set(meant[largest_first[0]].values()))
    tensors: dict[int, Any] = {}  # by meaning
    smallest: dict[int, int] = {}  # by meaning: the tensors of the smallest signature that has it
    for index in largest_first:
        size = len(set(meant[index].values()))
        for tensor, meaning in meant[index].items():
            tensors[meaning] = model.subgraphs[index].tensors[tensor]
            smallest[meaning] = min(smallest.get(meaning, size), size)
    alike = [i for i in largest_first if len(set(meant[i].values())) > most * _ALIKE]
    common = dict.fromkeys(meaning for i in alike for meaning in meant[i].values())
    numbers = {m: n for n, m in enumerate(sorted(common, key=smallest.__getitem__))}
    for index in largest_first:
        if index in alike:
            order = numbers
        else:
            found = dict.fromkeys(meant[index].values())
            room = range(len(found) * 5 // 4)
            order = {m: numbers[m] for m in found if m in numbers and numbers[m] in room}
            free = sorted(set(room) - set(order.values()))
            new = sorted((m for m in found if m not in order), key=smallest.__getitem__)
            order |= dict(zip(new, free, strict=False))
        by_number = {number: tensors[meaning] for meaning, number in order.items()}
        listed = [by_number.get(number, _EMPTY) for number in range(max(by_number, default=-1) + 1)]
        _renumber(model, index, {t: order[m] for t, m in meant[index].items()}, listed)


def _meanings(model: Model, subgraph: Subgraph, known: dict[Any, int]) -> dict[int, int]:
    """For each used tensor a number that says what it is: same number, same computation.

    Variables come first, since every signature has them.
    """
    meant: dict[int, int] = {}
    seen: set[int] = set()

    def meaning(*structure: Any) -> int:
        return known.setdefault(structure, len(known))

    for position, tensor in enumerate(subgraph.inputs):
        meant[int(tensor)] = meaning("input", position, _content(subgraph.tensors[tensor]))
    ranks = {"VAR_HANDLE": 0, "READ_VARIABLE": 1}
    for operator in sorted(subgraph.operators, key=lambda o: ranks.get(operation(model, o), 2)):
        for tensor in operator.inputs:
            if tensor >= 0 and int(tensor) not in meant:
                meant[int(tensor)] = meaning("constant", _content(subgraph.tensors[tensor]))
        sources = tuple(meant.get(int(t), -1) for t in operator.inputs)
        same = (operator.opcodeIndex, _content(operator.builtinOptions), sources)
        for position, tensor in enumerate(operator.outputs):
            # The same computation twice in a subgraph (two draws, two reads) is two tensors.
            times = 0
            while (found := meaning("result", *same, position, times)) in seen:
                times += 1
            meant[int(tensor)] = found
            seen.add(found)
    for tensor in subgraph.outputs:
        if int(tensor) not in meant:
            meant[int(tensor)] = meaning("constant", _content(subgraph.tensors[tensor]))
    return meant


def _renumber(model: Model, index: int, order: Mapping[int, int], tensors: Sequence[Any]) -> None:
    subgraph = model.subgraphs[index]

    def renumbered(tensors: Any) -> Any:
        return np.array([order[int(t)] if t >= 0 else t for t in tensors], np.int32)

    subgraph.tensors = list(tensors)
    subgraph.inputs, subgraph.outputs = renumbered(subgraph.inputs), renumbered(subgraph.outputs)
    for operator in subgraph.operators:
        operator.inputs = renumbered(operator.inputs)
        operator.outputs = renumbered(operator.outputs)
    for signature in model.signatureDefs:
        if signature.subgraphIndex == index:
            for entry in [*(signature.inputs or []), *(signature.outputs or [])]:
                entry.tensorIndex = order[entry.tensorIndex]


def share_tables(model: Model) -> None:
    """Equal tensors, operations and names are written once, and referred to from everywhere."""
    once: dict[Any, _Once] = {}

    def shared(item: Any) -> _Once:
        return once.setdefault(_content(item), _Once(item))

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


def _content(item: Any) -> Any:
    """What two parts of the model must have in common to be the same, all the way down."""
    if isinstance(item, np.ndarray):
        return item.dtype.str, item.tobytes()
    if hasattr(item, "__dict__"):
        return type(item).__name__, *((k, _content(v)) for k, v in sorted(vars(item).items()))
    return item


class _Once:
    """Packs its item the first time, and afterwards answers where it is."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.place: int | None = None

    def Pack(self, builder: Any) -> int:  # noqa: N802
        if self.place is None:
            self.place = self.item.Pack(builder)
        return self.place


def operation(model: Model, operator: Operator) -> str:
    """The builtin operation's name, or a custom operation's own."""
    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode is not None:
        return str(code.customCode.decode())
    return OPERATIONS[max(code.builtinCode, code.deprecatedBuiltinCode)]


def _operator(model: Model, builtin: int, inputs: list[int], outputs: list[int]) -> Operator:
    operator = schema.OperatorT()
    operator.opcodeIndex = _opcode(model, builtin)
    operator.inputs = np.array(inputs, np.int32)
    operator.outputs = np.array(outputs, np.int32)
    return operator


def _opcode(model: Model, builtin: int) -> int:
    for index, code in enumerate(model.operatorCodes):
        if max(code.builtinCode, code.deprecatedBuiltinCode) == builtin:
            return index
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _constant(model: Model, subgraph: Subgraph, value: Any, kind: int) -> int:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(np.asarray(value).tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor = schema.TensorT()
    tensor.shape = np.array(np.shape(value), np.int32)
    tensor.type = kind
    tensor.buffer = len(model.buffers) - 1
    subgraph.tensors.append(tensor)
    return len(subgraph.tensors) - 1


class _SharingBuilder(flatbuffers.Builder):  # type: ignore[misc]
    """Writes equal vectors and strings once, and constants aligned for the runtimes' kernels.

    Shapes, positions and single numbers are read one by one, and need no more than their own 4.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._vectors: dict[tuple[str, bytes], int] = {}
        self._strings: dict[Any, int] = {}
        self._lists: dict[tuple[int, ...], int] = {}
        self._before = 0  # where the vector that is being written began
        self._entries: list[int] | None = None  # those of it that are tables

    def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802
        key = (x.dtype.str, x.tobytes())
        if key not in self._vectors:
            if x.dtype == np.uint8:  # so that the bytes themselves start there
                self.Prep(16 if x.size > _SMALL else 4, x.size)
            self._vectors[key] = super().CreateNumpyVector(x)
        return self._vectors[key]

    def StartVector(self, *sizes: int) -> int:  # noqa: N802
        self._before, self._entries = self.Offset(), []
        return int(super().StartVector(*sizes))

    def PrependUOffsetTRelative(self, off: int) -> None:  # noqa: N802
        if self._entries is not None:
            self._entries.append(off)
        super().PrependUOffsetTRelative(off)

    def EndVector(self, *number: int) -> int:  # noqa: N802
        """A list of tables that was written before is taken back."""
        place, entries = int(super().EndVector(*number)), tuple(self._entries or ())
        self._entries = None
        if not entries:
            return place
        if entries in self._lists:
            self.head = len(self.Bytes) - self._before
        return self._lists.setdefault(entries, place)

    def CreateString(self, s: Any, *args: Any) -> int:  # noqa: N802
        if s not in self._strings:
            self._strings[s] = super().CreateString(s, *args)
        return self._strings[s]


OPERATIONS: dict[int, str] = {
    code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
}
_VARIABLES = frozenset({"READ_VARIABLE", "ASSIGN_VARIABLE"})
_WIDTHS = {schema.TensorType.UINT8: 1, schema.TensorType.INT8: 1, schema.TensorType.BOOL: 1}
# Options whose fields are zero where nothing is written, but for those that floats do not know.
_IGNORED_OPTIONS: dict[type, tuple[str, ...]] = {
    schema.AddOptionsT: ("potScaleInt16",),
    schema.SubOptionsT: ("potScaleInt16",),
    schema.MulOptionsT: (),
    schema.DivOptionsT: (),
    schema.BatchMatMulOptionsT: ("asymmetricQuantizeInputs",),
    schema.ConcatenationOptionsT: (),
    schema.ReducerOptionsT: (),
}
_EMPTY = schema.TensorT()  # of no operation; a runtime gives it no memory
