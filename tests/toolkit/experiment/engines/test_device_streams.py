"""A device's dropout draws numbers of its own, which no other device and no earlier start draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker.protocol.slice import Slice
from broker.protocol.wire import below
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import LabelledTask
from firmware_sim.training.learner import Learner
from firmware_sim.training.random_streams import draws_random_numbers, stream_number
from firmware_sim.training.runtime import Model
from toolkit import zoo
from toolkit.conversion.convert import convert_module
from toolkit.experiment.cell import BATCH
from toolkit.training.module import TrainingModule

pytestmark = pytest.mark.xdist_group("experiment")
RUNTIME = "ai-edge-litert"


@pytest.fixture(scope="module")
def with_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module = TrainingModule(zoo.build("digits", "complex"), batch=BATCH, runtime=RUNTIME)
    file = tmp_path_factory.mktemp("streams") / "model.tflite"
    file.write_bytes(convert_module(module))
    return file


def learner(file: Path, device: str) -> Learner:
    task = LabelledTask(read_digits(), batch=BATCH, seed=0)  # the same batches for all of them
    model = Model(file, runtime=RUNTIME)
    return Learner(model, task, Slice.of([]), device=device)


def test_two_devices_differ_and_a_repeat_is_equal(with_dropout: Path) -> None:
    assert draws_random_numbers(with_dropout)
    first, again, other = (
        np.array(list(learner(with_dropout, device).train(4, "delta")))
        for device in ("pi-1", "pi-1", "pi-2")
    )
    np.testing.assert_array_equal(first, again)
    assert (np.abs(first - other) > 1e-4).all()


def test_a_restart_continues_with_new_numbers(with_dropout: Path) -> None:
    """The runtime hides its position in a stream: beginning the same one again would repeat it."""
    device = learner(with_dropout, "pi-1")
    list(device.train(3, "delta"))
    state = device.state()
    resumed = [learner(with_dropout, "pi-1") for _ in range(2)]
    for one in resumed:
        one.restore(state)
    losses = [np.array(list(one.train(3, "delta"))) for one in resumed]
    np.testing.assert_array_equal(losses[0], losses[1])  # it depends on the checkpoint alone

    replayed = learner(with_dropout, "pi-1")
    replayed.model.call("set_state", **below("model/", state))
    replayed.task.restore(below("task/", state))
    assert (np.abs(losses[0] - list(replayed.train(3, "delta"))) > 1e-4).all()


def test_numbers_of_streams() -> None:
    found = [stream_number(*parts) for parts in (("a",), ("b",), ("a", 1), ("a", 2), (1, "a"))]
    assert len(set(found)) == 5
    assert all(0 < number < 2**31 for number in found)
    assert stream_number("pi-1", 7) == stream_number("pi-1", 7) == 212_666_984
