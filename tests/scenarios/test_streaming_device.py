"""A device inside an application joins its fleet before it has anything to train on.

The deadline is longer than any test, so a round that waited for it would never close. Expected: it
joins, rounds close without it, and when examples come it takes part from the newest θ_shared, and
its predictions come from the fleet's.
"""

import io
from collections.abc import Callable
from pathlib import Path
from threading import Semaphore

import numpy as np
import pytest

from broker.log import Log
from broker.protocol.messages import DeviceState
from broker.protocol.topics import Topics
from firmware_sim import Device
from firmware_sim.bundle.reader import SLICE, Bundle
from firmware_sim.tasks.digits import digit_images
from tests.harness.arithmetic import UNBOUNDED
from tests.harness.programs import Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.waiting import wait_until
from tests.harness.watcher import Watcher

pytestmark = pytest.mark.xdist_group("fleet")


def test_rounds_do_not_wait_for_a_device_without_examples(
    digits_bundle: Bundle,
    tmp_path: Path,
    programs: Programs,
    watcher: Watcher,
    scripted: Callable[..., ScriptedDevice],
    topics: Topics,
) -> None:
    options = ("--quorum", "1", "--deadline", "3600", "--rounds", "5")
    aggregator = programs.aggregator("--slice", digits_bundle.folder / SLICE, *options, *UNBOUNDED)
    images, labels = digit_images()
    with Device(
        digits_bundle.folder,
        state=tmp_path / "streams",
        broker=str(programs.broker),
        fleet=topics.fleet,
        id="streams",
        steps=10,
        resend_seconds=0.5,
        log=Log(io.StringIO(), as_json=True),
    ) as device:
        watcher.wait_for(DeviceState, topics.state("streams"), lambda state: state.online)
        may_train = Semaphore(0)
        shared = digits_bundle.manifest.shared
        other = scripted("other", shared, samples=100, seed=1, pace=may_train.acquire)
        before = device.predict(images[0]).output
        may_train.release(2)
        wait_until(lambda: len(aggregator.history("merged")) >= 2, "rounds without it")
        assert [event["devices"] for event in aggregator.history("merged")][:2] == [1, 1]
        for image, label in zip(images[:64], labels[:64], strict=True):
            device.observe(image, int(label))
        wait_until(
            lambda: any(update.device == "streams" for update in watcher.accepted()),
            "it takes part when it has examples",
        )
        may_train.release(6)
        other.finish()
        wait_until(lambda: not device.training, "the fleet has finished")
        assert device.error is None
        assert not np.array_equal(device.predict(images[0]).output, before)
    assert aggregator.exit_code() == 0
