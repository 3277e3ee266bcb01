"""`Device` in an application: it predicts, learns behind that, and loses nothing."""

import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.log import Log
from firmware_sim import Device
from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import BundleError, DeviceClosed, SourceError, WrongInput
from firmware_sim.store.slots import HELD_OUT, TRAINED
from firmware_sim.tasks.digits import digit_images
from firmware_sim.training.runtime import Model
from tests.harness.waiting import wait_until

IMAGES, LABELS = digit_images()


@pytest.fixture
def device(digits_bundle: Bundle, tmp_path: Path) -> Iterator[Callable[..., Device]]:
    made: list[Device] = []

    def start(name: str = "state", **options: Any) -> Device:
        given: dict[str, Any] = {
            "steps": 10,
            "seed": 1,
            "log": Log(io.StringIO(), as_json=True),
        } | options
        made.append(Device(digits_bundle.folder, state=tmp_path / name, **given))
        return made[-1]

    yield start
    for one in made:
        one.close()


def log_of(device: Device) -> list[dict[str, Any]]:
    stream = device._log._stream
    assert isinstance(stream, io.StringIO)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def accuracy(device: Device) -> float:
    some = range(1000, 1100)
    return float(sum(device.predict(IMAGES[n]).label == LABELS[n] for n in some) / len(some))


def test_it_learns_from_what_it_observes_and_goes_on_where_it_was(
    device: Callable[..., Device], digits_bundle: Bundle
) -> None:
    first = device()
    model = Model(digits_bundle.model)
    answer = model.call("infer", x=IMAGES[:1])["output"][0]
    before = first.predict(IMAGES[0])
    assert np.allclose(before.output, answer, rtol=1e-5, atol=1e-6), "not the bundle's weights"
    assert before.probabilities is not None
    assert before.probabilities.sum() == pytest.approx(1.0, abs=1e-5)
    assert before.label == int(before.probabilities.argmax())
    start = accuracy(first)
    wait_until(lambda: any(e["event"] == "waiting" for e in log_of(first)), "the device")
    for image, label in zip(IMAGES[:600], LABELS[:600], strict=True):
        first.observe(image, int(label))
    wait_until(lambda: first.scores.get("accuracy", 0) > 0.8, "the device")
    assert accuracy(first) > max(0.7, start)
    assert "test_then_train_accuracy" in first.scores
    first.close()
    assert [e["event"] for e in log_of(first)].count("waiting") == 1
    again = device()
    assert accuracy(again) > max(0.7, start), "the checkpoint's weights are not in use at once"
    assert [e["event"] for e in log_of(again)].count("resumed") == 1
    counts = again._stream.store.counts()
    assert (counts.trained + counts.held_out, counts.arrivals) == (600, 600)


def test_labels_may_come_later(device: Callable[..., Device]) -> None:
    one = device()
    keys = [one.observe(image) for image in IMAGES[:40]]
    assert one._stream.store.counts().waiting == 40
    assert all(one.label(key, int(y)) for key, y in zip(keys, LABELS, strict=False))
    assert not one.label("unknown", 3)
    assert one.observe(IMAGES[50], 3, key="window-50") == "window-50"
    batches = [b for part in (TRAINED, HELD_OUT) for b in one._stream.store.examples(part, 50)]
    assert sum(len(b.x) for b in batches) == 41


def test_mistakes_are_said_in_one_sentence(
    device: Callable[..., Device], tmp_path: Path, atari_bundle: Bundle
) -> None:
    one = device()
    with pytest.raises(WrongInput, match="the example is"):
        one.predict(np.zeros((2, 2)))
    with pytest.raises(WrongInput, match="the label 10 is not a class from 0 to 9"):
        one.observe(IMAGES[0], 10)
    one.close()
    with pytest.raises(DeviceClosed, match="the device is closed"):
        one.predict(IMAGES[0])
    with pytest.raises(WrongInput, match=r"are not understood: .*--sleeps"):
        device(sleeps=3)
    with pytest.raises(WrongInput, match="are not understood: say --fleet NAME and --id ID"):
        device(fleet="plant")
    with pytest.raises(BundleError, match="there is no bundle"):
        Device(tmp_path / "nothing", state=tmp_path / "b")


def test_what_ends_the_training_is_said_and_raised_at_the_end(
    device: Callable[..., Device], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(
        "def windows():\n    yield None\n    raise OSError('gone')\n"
    )
    one = device(source=f"{tmp_path / 'broken.py'}:windows")
    wait_until(lambda: one.error is not None, "the device")
    assert isinstance(one.error, SourceError) and not one.training
    assert one.predict(IMAGES[0]).label in range(10), "predictions go on"
    assert log_of(one)[-1]["event"] == "training_failed"
    with pytest.raises(SourceError, match=r"the source of examples failed .OSError: gone"):
        one.close()


def test_close_does_not_wait_for_a_round(device: Callable[..., Device]) -> None:
    one = device(steps=10**6)
    for image, label in zip(IMAGES[:64], LABELS[:64], strict=True):
        one.observe(image, int(label))
    wait_until(lambda: one._stream.task._drawn > 2, "the device")
    one.close()
    drawn = one._stream.task._drawn
    again = device(steps=10**6)
    wait_until(lambda: any(e["event"] == "resumed" for e in log_of(again)), "the device")
    (resumed,) = [e for e in log_of(again) if e["event"] == "resumed"]
    assert resumed["steps_done"] == drawn


def test_predictions_of_many_threads_do_not_mix(device: Callable[..., Device]) -> None:
    one = device()
    wanted = [one.predict(image).output for image in IMAGES[:8]]
    wrong: list[int] = []

    def ask(number: int) -> None:
        for _ in range(50):
            if not np.array_equal(one.predict(IMAGES[number]).output, wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


APPLICATION = """
import sys
from firmware_sim import Device
from firmware_sim.tasks.digits import digit_images
images, labels = digit_images()
with Device(sys.argv[1], state=sys.argv[2], steps=5, checkpoint_seconds=0.05) as device:
    for n in range(device._stream.store.counts().arrivals, 10**9):
        device.observe(images[n % 1797], int(labels[n % 1797]), key=f"window {n}")
        print(n, flush=True)
"""


def test_an_application_that_is_killed_has_every_example_once_and_trains_on(
    digits_bundle: Bundle, device: Callable[..., Device], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", APPLICATION, str(digits_bundle.folder), str(tmp_path / "s")]
    returned = -1
    for kill in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            for _ in range(120):
                returned = int(running.stdout.readline())
            time.sleep(0.1 * kill)
            running.send_signal(signal.SIGKILL)
            rest = running.stdout.read().splitlines()
        returned = int(rest[-1]) if rest else returned
    after = device("s")
    store = after._stream.store
    found = sum(len(b.x) for part in (TRAINED, HELD_OUT) for b in store.examples(part, 50))
    assert found in (returned + 1, returned + 2) and store.counts().repeated == 0
    assert all(store.example(f"window {n}") is not None for n in range(returned + 1))
    wait_until(lambda: after.scores.get("accuracy", 0) > 0.2, "the device")
