"""The memory of a device: estimated, measured, and made to fit by smaller micro-batches."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from firmware_sim.bundle.manifest import Measured
from firmware_sim.bundle.reader import Bundle
from profiles import Profile, load_profile
from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.conversion.convert import convert_module
from toolkit.conversion.tflite_internals import schema
from toolkit.errors import ExportError
from toolkit.export import bundle as stages
from toolkit.export import trial
from toolkit.export.bundle import export
from toolkit.export.memory_estimate import (
    PACKING,
    RESERVE_MIB,
    MemoryEstimate,
    alive_bytes,
    estimate_memory,
    fits,
    largest_micro_batch,
)
from toolkit.training.module import TrainingModule

MIB = 2**20
WEAK = load_profile("weak")


# --- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "most", "chosen", "attempts"),
    [
        (32, 16, 16, [1, 4, 8, 16]),
        (32, 15, 8, [1, 4, 8, 16]),
        (32, 3, 2, [1, 4, 2]),
        (32, 1, 1, [1, 4, 2]),
        (32, 0, None, [1]),
        (12, 6, 6, [1, 3, 4, 6]),
        (7, 6, 1, [1]),
        (1, 1, None, []),
    ],
)
def test_the_largest_divisor_that_fits_is_chosen(
    batch: int, most: int, chosen: int | None, attempts: list[int]
) -> None:
    tried: list[int] = []

    def attempt(size: int) -> bool:
        tried.append(size)
        return size <= most

    assert largest_micro_batch(batch, attempt) == chosen
    assert tried == attempts


def test_a_reserve_is_left_of_the_cap() -> None:
    assert fits((80 - RESERVE_MIB) * MIB, 80)
    assert not fits((80 - RESERVE_MIB) * MIB + 1, 80)


# --- estimating ----------------------------------------------------------------------------------


def test_the_estimate_knows_state_file_and_activations(digits_bundle: Bundle) -> None:
    branch = zoo.build("digits", "lightweight")
    found = {}
    for micro in (32, 8):
        module = TrainingModule(branch, batch=32, micro_batch=micro, runtime="ai-edge-litert")
        # The bundle has the one of the whole batch.
        model = digits_bundle.model.read_bytes() if micro == 32 else convert_module(module)
        found[micro] = estimate_memory(module, model, "ai-edge-litert")
        # Adam: weights, two slots and the accumulated gradient, and the count of steps
        assert found[micro].state_bytes == 4 * (4 * 3930 + 1)
        assert found[micro].file_bytes == len(model)
        assert found[micro].game_bytes == 0
    # The first convolution alone answers 8 × 8 × 16 floats for each sample.
    assert found[32].arena_bytes > 32 * 8 * 8 * 16 * 4
    assert found[8].arena_bytes < 0.5 * found[32].arena_bytes
    saved = found[32].arena_bytes - found[8].arena_bytes
    smaller = found[32].peak_bytes - found[8].peak_bytes
    assert smaller == pytest.approx(PACKING * saved, abs=64 * 2**10)


def test_alive_is_what_is_still_needed_and_what_a_convolution_gathers() -> None:
    """x → convolution → reshape, which is a view → product with itself, for two samples."""
    shapes = [(2, 8, 8, 3), (5, 3, 3, 3), (5,), (2, 6, 6, 5), (2, 180), (2, 180)]
    graph, model = schema.SubGraphT(), schema.ModelT()
    model.buffers = [schema.BufferT()]
    codes = [schema.BuiltinOperator.CONV_2D, schema.BuiltinOperator.RESHAPE]
    for code in (*codes, schema.BuiltinOperator.MUL):
        model.operatorCodes = [*(model.operatorCodes or []), schema.OperatorCodeT()]
        model.operatorCodes[-1].builtinCode = code
    graph.tensors = [schema.TensorT() for _ in shapes]
    for tensor, shape in zip(graph.tensors, shapes, strict=True):
        tensor.shape, tensor.type, tensor.buffer = list(shape), schema.TensorType.FLOAT32, 0
    graph.operators = [schema.OperatorT() for _ in range(3)]
    wires = [([0, 1, 2], [3]), ([3], [4]), ([4, 4], [5])]
    for number, (operator, (inputs, outputs)) in enumerate(
        zip(graph.operators, wires, strict=True)
    ):
        operator.opcodeIndex, operator.inputs, operator.outputs = number, inputs, outputs
    graph.inputs, graph.outputs = [0, 1, 2], [5]
    images, weights, answer = 2 * 8 * 8 * 3, 5 * 3 * 3 * 3 + 5, 2 * 6 * 6 * 5
    columns = 2 * 6 * 6 * 3 * 3 * 3
    assert alive_bytes(model, graph) == 4 * (images + weights + answer + columns)
    graph.tensors[1].shape = [5, 1, 1, 3]  # nothing to gather under one pixel
    assert alive_bytes(model, graph) == 4 * (images + 5 * 3 + 5 + answer)
    graph.operators = graph.operators[1:]
    graph.inputs = [3]
    assert alive_bytes(model, graph) == 4 * 2 * answer, "a reshape takes no memory"


# --- fitting -------------------------------------------------------------------------------------


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], None]:
    """Replaces fresh processes: a branch takes so many MiB, and one more for 4 samples at once."""

    def say(mib: dict[str, float]) -> None:
        def convert(module: TrainingModule) -> bytes:
            return f"{module.branch.name} {module.micro_batch}".encode()

        def measure(branch: Branch, profile: Profile, model: Path) -> Measured:
            name, micro = model.read_text().split()
            assert name == branch.name
            return Measured("none", "0", 1, int((mib[name] + int(micro) / 4) * MIB), 0, 0.1)

        estimate = MemoryEstimate(0, 0, 0, 0, 0, 0, 0, 1)
        for module in (stages, trial):
            monkeypatch.setattr(module, "convert_module", convert)
            monkeypatch.setattr(module, "try_out", measure)
        for converted in ("convert_inference", "convert_prediction"):
            monkeypatch.setattr(stages, converted, lambda *arguments: b"")
        monkeypatch.setattr(stages, "estimate_memory", lambda *arguments: estimate)

    return say


@pytest.mark.parametrize(("mib", "micro"), [(119, 32), (119.25, 16), (124, 8), (126.5, 2)])
def test_an_export_takes_the_largest_micro_batch_that_fits(
    tmp_path: Path, measuring: Callable[[dict[str, float]], None], mib: float, micro: int
) -> None:
    measuring({"digits-lightweight": mib})
    made = export(zoo.build("digits", "lightweight"), WEAK, tmp_path / "weak")
    assert (made.manifest.batch_size, made.manifest.micro_batch_size) == (32, micro)
    assert made.model.read_text() == f"digits-lightweight {micro}"
    assert made.measured.peak_bytes == int((mib + micro / 4) * MIB)
    assert made.manifest.signatures["accumulate"]["x"].shape[0] == micro
    assert ("step" in made.manifest.signatures) == (micro < 32)


@pytest.mark.parametrize(
    ("smaller", "mib", "advice"),
    [
        (None, math.nan, "; a branch with fewer or narrower layers would take less."),
        ("lightweight", 60, "; the branch digits-lightweight fits, in 60 MiB."),
        (
            "lightweight",
            130,
            ", and the branch digits-lightweight does not fit either, with 130 MiB.",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path,
    measuring: Callable[[dict[str, float]], None],
    smaller: str | None,
    mib: float,
    advice: str,
) -> None:
    measuring({"digits-complex": 140, "digits-lightweight": mib})
    other = (lambda: zoo.build("digits", smaller)) if smaller else None
    with pytest.raises(ExportError) as caught:
        export(zoo.build("digits", "complex"), WEAK, tmp_path / "weak", smaller=other)
    assert str(caught.value) == (
        "training takes 140 MiB even in micro-batches of 1, 13.2 MiB more than profile weak "
        "leaves of its 128 MiB" + advice
    )
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, measuring: Callable[[dict[str, float]], None]
) -> None:
    measuring({"cifar10-complex": 60})
    with pytest.raises(ExportError) as caught:
        export(zoo.build("cifar10", "complex"), replace(WEAK, storage_cap_mib=8), tmp_path / "b")
    assert str(caught.value).endswith(
        "MiB on disk, and profile weak allows 8 MiB; a smaller branch would fit."
    )
    assert list(tmp_path.iterdir()) == []
