"""What a fingerprint tells apart, who may join, and a sentence for every file that is no slice."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from broker.aggregator.slice_file import MERGE, TRAINED, read_slice, read_slices
from broker.errors import SliceError
from broker.protocol.slice import SharedTensor, Slice, first_difference, union


def stem(
    *,
    stride: int = 1,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    activation: str = "Relu",
    kernel: int = 3,
    scale: float = 1 / 255,
    name: str = "conv1",
    input_type: int = TensorProto.UINT8,
    pooled: bool = False,
    mean: float = 0.5,
    layers: int = 2,
    seed: int = 0,
) -> onnx.ModelProto:
    """x · scale - mean → conv1 → activation (→ pool) → conv2, 4 channels each."""
    rng = np.random.default_rng(seed)

    def weights(tensor: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), tensor)

    def constant(node: str, output: str, number: float) -> onnx.NodeProto:
        value = numpy_helper.from_array(np.float32(number))
        return helper.make_node("Constant", [], [output], node, value=value)

    conv = {"strides": [stride, stride], "pads": list(pads)}
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], "between/Cast", to=TensorProto.FLOAT),
        constant("constant/scale", "scale", scale),
        helper.make_node("Mul", ["a", "scale"], ["b"], "between/Mul"),
        constant("local/mean", "mean", mean),
        helper.make_node("Sub", ["b", "mean"], ["c"], "between/Sub"),
        helper.make_node("Transpose", [f"{name}/kernel"], ["k"], "shared/1/T", perm=[3, 2, 0, 1]),
        helper.make_node("Conv", ["c", "k"], ["d"], "shared/1/Conv", **conv),
        helper.make_node("Add", ["d", f"{name}/bias"], ["e"], "shared/1/Add"),
        helper.make_node(activation, ["e"], ["f"], "shared/1/activation"),
    ]
    stored = [weights(f"{name}/kernel", kernel, kernel, 3, 4), weights(f"{name}/bias", 4, 1, 1)]
    output = "f"
    if layers == 2:
        if pooled:
            pool = {"kernel_shape": [1, 1]}
            nodes.append(helper.make_node("MaxPool", ["f"], ["g"], "between/Pool", **pool))
        fed = "g" if pooled else "f"
        nodes.append(helper.make_node("Conv", [fed, "conv2/kernel"], ["h"], "shared/2/Conv"))
        stored.append(weights("conv2/kernel", 4, 4, 1, 1))
        output = "h"
    shape = [1, 3, 8, 8]
    graph = helper.make_graph(
        nodes,
        "slice",
        [helper.make_tensor_value_info("x", input_type, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, None, None, None])],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sliced(**changes: object) -> Slice:
    return read_slice(stem(**changes).SerializeToString())[0]  # type: ignore[arg-type]


def refusal(source: Path | str | bytes, **options: int) -> str:
    """The sentence, and that it is one."""
    with pytest.raises(SliceError) as caught:
        read_slice(source, **options)
    text = str(caught.value)
    assert re.fullmatch(r"[^\n]+\.", text)
    assert ". " not in text
    return text


def test_tensors_and_initial_values_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.onnx"
    path.write_bytes(stem().SerializeToString())
    found, values = read_slice(path)
    assert [(t.name, t.shape, t.dtype) for t in found.tensors] == [
        ("conv1/kernel", (3, 3, 3, 4), "float32"),
        ("conv1/bias", (4, 1, 1), "float32"),
        ("conv2/kernel", (4, 4, 1, 1), "float32"),
    ]
    first = np.random.default_rng(0).standard_normal((3, 3, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(values["conv1/kernel"], first)
    assert read_slice(str(path))[0] == found


def test_a_fingerprint_is_the_digest_of_name_shape_dtype_and_role() -> None:
    kernel = sliced().tensors[0]
    assert re.fullmatch("[0-9a-f]{64}", kernel.fingerprint)
    parts = (kernel.name, kernel.shape, kernel.dtype, kernel.role)
    assert SharedTensor.of(*parts) == kernel
    others = [
        SharedTensor.of("other", *parts[1:]),
        SharedTensor.of(parts[0], (1,), *parts[2:]),
        SharedTensor.of(*parts[:2], "float16", parts[3]),
        SharedTensor.of(*parts[:3], "{}"),
    ]
    assert len({tensor.fingerprint for tensor in (kernel, *others)}) == 5


def test_the_slice_fingerprint_ignores_the_order_of_tensors() -> None:
    found = sliced()
    assert Slice.of(found.tensors[::-1]).fingerprint == found.fingerprint
    assert Slice.of(found.tensors[1:]).fingerprint != found.fingerprint


@pytest.mark.parametrize("change", [{"seed": 1}, {"mean": 0.25}], ids=["weights", "local constant"])
def test_other_stored_values_give_the_same_fingerprints(change: dict[str, object]) -> None:
    assert sliced(**change) == sliced()


CHANGES: dict[str, tuple[dict[str, object], str]] = {
    "stride": (
        {"stride": 2},
        "tensor 'conv1/kernel' is used by Conv with strides [2, 2] on the device "
        "and [1, 1] in the fleet.",
    ),
    "padding": (
        {"pads": (0, 0, 2, 2)},
        "tensor 'conv1/kernel' is used by Conv with pads [0, 0, 2, 2] on the device "
        "and [1, 1, 1, 1] in the fleet.",
    ),
    "activation": (
        {"activation": "Elu"},
        "tensor 'conv1/kernel' is followed by Add, Elu on the device and Add, Relu in the fleet.",
    ),
    "kernel size": (
        {"kernel": 5, "pads": (2, 2, 2, 2)},
        "tensor 'conv1/kernel' has shape (5, 5, 3, 4) on the device and (3, 3, 3, 4) in the fleet.",
    ),
    "input scale": (
        {"scale": 1 / 128},
        "tensor 'conv1/kernel' is used by Conv, which something else feeds than in the fleet.",
    ),
    "input type": (
        {"input_type": TensorProto.INT8},
        "tensor 'conv1/kernel' is used by Conv, which something else feeds than in the fleet.",
    ),
    "name": (
        {"name": "first"},
        "the device shares tensor 'first/kernel', which the fleet does not know.",
    ),
    "feeding layer": (
        {"pooled": True},
        "tensor 'conv2/kernel' is used by Conv, which something else feeds than in the fleet.",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_single_change_gives_another_fingerprint_and_is_named(change: str) -> None:
    changes, sentence = CHANGES[change]
    device, known = sliced(**changes), sliced()
    assert device.fingerprint != known.fingerprint
    assert first_difference(device, known) == sentence


def test_every_later_tensor_depends_on_what_feeds_it() -> None:
    before = {t.name: t.fingerprint for t in sliced().tensors}
    after = {t.name: t.fingerprint for t in sliced(stride=2).tensors}
    assert all(before[name] != after[name] for name in before)


def test_a_slice_that_ends_earlier_may_join_but_not_the_other_way_round() -> None:
    short, long = sliced(layers=1), sliced(pooled=True)
    assert first_difference(short, long) is None
    assert first_difference(long, short) == (
        "the device shares tensor 'conv2/kernel', which the fleet does not know."
    )
    assert union([short, long]) == long


def test_unnamed_nodes_are_followed_up_to_the_next_tensor() -> None:
    def anonymous(**changes: object) -> Slice:
        model = stem(**changes)  # type: ignore[arg-type]
        for node in model.graph.node:
            node.name = ""
        return read_slice(model.SerializeToString())[0]

    assert first_difference(anonymous(pooled=True), anonymous()) == (
        "tensor 'conv1/kernel' is followed by Add, Relu, MaxPool on the device "
        "and Add, Relu in the fleet."
    )


def test_a_device_that_announces_digests_alone_is_compared_by_them() -> None:
    def announced(found: Slice) -> Slice:
        return Slice.of(replace(tensor, role="") for tensor in found.tensors)

    assert first_difference(announced(sliced()), sliced()) is None
    assert first_difference(announced(sliced(stride=2)), sliced()) == (
        "tensor 'conv1/kernel' has another role on the device than in the fleet."
    )


def test_union_of_disjoint_slices_keeps_all_and_contradictions_are_refused() -> None:
    one, other = sliced(layers=1), sliced(layers=1, name="first")
    assert union([one, other]).tensors == one.tensors + other.tensors
    assert union([]).tensors == ()
    with pytest.raises(SliceError, match=r"^two slices contradict each other: tensor 'conv1/"):
        union([one, sliced(stride=2)])


def test_too_large_a_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # sparse: takes no room, and would not fit into memory
    assert refusal(path) == f"the slice {str(path)!r} is larger than the limit of 268435456 bytes."
    data = stem().SerializeToString()
    assert refusal(data, limit=len(data) - 1).endswith(f"limit of {len(data) - 1} bytes.")
    assert read_slice(data, limit=len(data))[0] == sliced()


def test_a_file_without_an_end_is_refused() -> None:
    assert refusal("/dev/zero", limit=1000) == (
        "the slice '/dev/zero' is larger than the limit of 1000 bytes."
    )


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.onnx").endswith("cannot be read: No such file or directory.")
    assert refusal(tmp_path).endswith("cannot be read: Is a directory.")


def test_every_truncation_is_refused() -> None:
    data = stem().SerializeToString()
    for length in range(len(data)):
        assert refusal(data[:length]).startswith("the slice is not a")


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(data)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_damaged_files_are_read_or_refused_but_never_crash(data: st.DataObject) -> None:
    whole = bytearray(stem().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_slice(bytes(whole))
    except SliceError as error:
        assert re.fullmatch(r"[^\n]+\.", str(error))


def test_the_files_of_a_fleet_state_merges_and_no_fingerprint_knows(tmp_path: Path) -> None:
    plain, stated = stem(), stem(seed=1, layers=1)
    helper.set_model_props(stated, {"author": "somebody", MERGE: "mean"})
    files = {"old": plain, "new": stated}
    for name, model in files.items():
        (tmp_path / name).write_bytes(model.SerializeToString())
    found = read_slices([tmp_path / name for name in files])
    assert found.merges == {tmp_path / "new": "mean"}
    assert found.known == sliced()
    assert sliced(seed=1, layers=1) == read_slice(tmp_path / "new")[0]
    first = np.random.default_rng(0).standard_normal((3, 3, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(found.start["conv1/kernel"], first)


def stem_file(path: Path, *trained: str, seed: int, layers: int = 2) -> Path:
    model = stem(seed=seed, layers=layers)
    helper.set_model_props(model, {TRAINED: json.dumps(trained)} if trained else {})
    path.write_bytes(model.SerializeToString())
    return path


def test_trained_values_win_over_drawn_ones(tmp_path: Path) -> None:
    kernel, bias = "conv1/kernel", "conv1/bias"
    drawn = stem_file(tmp_path / "drawn", seed=0)
    taught = stem_file(tmp_path / "taught", kernel, seed=1)
    other = stem_file(tmp_path / "other", kernel, seed=2, layers=1)
    mine, theirs = read_slice(drawn)[1], read_slice(taught)[1]
    for files in ((drawn, taught), (taught, drawn)):
        found = read_slices(files)
        np.testing.assert_array_equal(found.start[kernel], theirs[kernel])
        np.testing.assert_array_equal(found.start[bias], read_slice(files[0])[1][bias])
        assert found.known == read_slice(drawn)[0]
    assert not np.array_equal(mine[kernel], theirs[kernel])
    read_slices([taught, taught])
    with pytest.raises(SliceError) as caught:
        read_slices([drawn, taught, other])
    assert str(caught.value) == (
        f"{taught} and {other} bring different trained values of tensor 'conv1/kernel': choose "
        "with --start the bundle whose values shall count."
    )
    assert read_slices([taught, other], chosen={kernel}).start.keys() == mine.keys()


@pytest.mark.parametrize("listed", ["conv1/kernel", '{"conv1/kernel": 1}', "[1]", '["none"]'])
def test_what_is_trained_must_be_a_list_of_tensors(listed: str) -> None:
    model = stem()
    helper.set_model_props(model, {TRAINED: listed})
    assert refusal(model.SerializeToString()) == (
        "the slice does not list its trained tensors as JSON."
    )


@pytest.mark.parametrize("name", [b"shared/1/Conv", b"conv1/bias", b"batch", b"samples"])
def test_a_name_that_is_not_text_is_refused(name: bytes) -> None:
    model = stem()
    helper.set_model_props(model, {MERGE: "samples"})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    read_slice(model.SerializeToString())
    broken = model.SerializeToString().replace(name, b"\xff" * len(name))
    assert refusal(broken) == "the slice has a name that is not text."


def _external(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def _external_constant(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[0].t.external_data.add(key="location", value="/etc/passwd")


def _duplicate(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[1])


def _double(model: onnx.ModelProto) -> None:
    extra = numpy_helper.from_array(np.zeros(3), "extra")
    model.graph.initializer.append(extra)


def _not_finite(model: onnx.ModelProto) -> None:
    bias = numpy_helper.from_array(np.full((4, 1, 1), np.nan, np.float32), "conv1/bias")
    model.graph.initializer[1].CopyFrom(bias)


def _half_filled(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].raw_data = b"\0" * 8


def _negative_shape(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].dims[0] = -1


def _nothing_shared(model: onnx.ModelProto) -> None:
    del model.graph.node[5:]
    del model.graph.initializer[:]
    model.graph.output[0].name = "c"


def _foreign(model: onnx.ModelProto) -> None:
    model.graph.node[-1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))


def _control_flow(model: onnx.ModelProto) -> None:
    model.graph.node[-1].attribute.append(helper.make_attribute("body", model.graph))


def _unknown_operation(model: onnx.ModelProto) -> None:
    model.graph.node[-1].op_type = "Colvolution"


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "f"


def _unknown_merge(model: onnx.ModelProto) -> None:
    helper.set_model_props(model, {MERGE: "average of everything that came"})


BAD: dict[Callable[[onnx.ModelProto], None], str] = {
    _external: "the slice keeps tensor 'conv1/kernel' in another file.",
    _external_constant: "the slice keeps tensor '' in another file.",
    _duplicate: "the slice has tensor 'conv1/bias' twice.",
    _double: "the slice has tensor 'extra', which is not float32.",
    _not_finite: "the slice has tensor 'conv1/bias', which is not finite.",
    _half_filled: "the slice has tensor 'conv1/bias', whose data do not fill its shape.",
    _negative_shape: "the slice is not a valid ONNX model.",
    _nothing_shared: "the slice shares no tensor.",
    _foreign: "the slice needs more than ONNX's plain operations on numbers.",
    _control_flow: "the slice needs more than ONNX's plain operations on numbers.",
    _unknown_operation: "the slice is not a valid ONNX model.",
    _cycle: "the slice is not a valid ONNX model.",
    _unknown_merge: "the slice states merge 'average of everythin', none of sum, mean, samples, "
    "median, trimmed-mean, multi-krum.",
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__.strip("_"))
def test_a_spoilt_file_is_refused_with_its_reason(spoil: Callable[[onnx.ModelProto], None]) -> None:
    model = stem()
    spoil(model)
    assert refusal(model.SerializeToString()) == BAD[spoil]


def test_reading_slices_needs_no_tensorflow() -> None:
    code = "import sys, broker.aggregator.slice_file as _; "
    code += "print({'tensorflow', 'keras'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
