"""Keras → fleet → Keras: accuracy is the same to the last digit shown, on every way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from broker.aggregator.slice_file import read_slices
from broker.log import Log
from firmware_sim.bundle.reader import open_bundle
from firmware_sim.device.build import make_rounds
from firmware_sim.tasks.arrays import read_examples
from firmware_sim.tasks.digits import read_digits
from firmware_sim.tasks.labelled import Examples, LabelledTask, own_share
from firmware_sim.training.rounds import Plan
from toolkit.fleet.in_one_process import NEVER, Fleet, Member, in_memory, run_fleet

Toolkit = Callable[..., Any]
pytestmark = pytest.mark.xdist_group("round trip")


def model_of_digits() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, strides=2, activation="relu", name="stem_conv"),
            layers.Flatten(name="flat"),
            layers.Dense(10, activation="softmax", name="head"),
        ]
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 100, 0.5)
    optimizer = keras.optimizers.AdamW(schedule, clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The digits as float32 from 0 to 1."""
    digits = read_digits()
    x_train, x_test = (x.astype(np.float32) / 16 for x in (digits.x_train, digits.x_test))
    file = tmp_path / "digits.npz"
    labels = {"y_train": digits.y_train, "y_test": digits.y_test}
    np.savez(file, x_train=x_train, x_test=x_test, **labels)
    return file


def test_accuracy_is_the_same_on_every_way(toolkit: Toolkit, data: Path, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    examples = read_examples(data)
    model = model_of_digits()
    model.fit(examples.x_train[:400], examples.y_train[:400], 32, 3, verbose=0)
    model.save(tmp_path / "mine.keras")
    begun = accuracy(model, examples)
    assert 0.5 < begun < 0.95

    bundle = tmp_path / "bundle"
    options = ("--model", tmp_path / "mine.keras", "--share", "stem*", "--calibration", data)
    ran = toolkit("export", "--profile", "weak", *options, "--out", bundle)
    assert (ran.code, ran.err) == (0, "")
    assert "2 of 2 shared tensors bring trained values" in ran.out
    assert (
        device_accuracy(toolkit, bundle, data) == begun
    )  # the weights in the model are on the device

    scores = learn_together(bundle, examples, tmp_path)
    for name in ("one", "two"):
        state, out = ("--state", tmp_path / name), tmp_path / f"{name}.keras"
        assert toolkit("checkout", bundle, *state, "--keras", out).code == 0
        again = keras.models.load_model(out, compile=False)
        assert accuracy(again, examples) == device_accuracy(toolkit, bundle, data, *state)
        assert accuracy(again, examples) == pytest.approx(scores[name]["accuracy"])
        assert accuracy(again, examples) > begun


def accuracy(model: keras.Model, examples: Examples) -> float:
    answers = model.predict(examples.x_test, verbose=0)
    return float(np.mean(answers.argmax(-1) == examples.y_test))


def device_accuracy(toolkit: Toolkit, bundle: Path, data: Path, *options: object) -> float:
    ran = toolkit("evaluate", bundle, "--data", data, "--json", *options)
    assert (ran.code, ran.err) == (0, "")
    return float(json.loads(ran.out)["accuracy"])


def learn_together(folder: Path, examples: Examples, states: Path) -> Any:
    """Two devices with half of the data each, over a broker in memory."""
    bundle = open_bundle(folder)
    slices = read_slices([bundle.slice])
    with (states / "log.jsonl").open("w") as stream:
        log = Log(stream)
        members = []
        for name, share in (("one", (0.0, 0.5)), ("two", (0.5, 1.0))):
            batch = bundle.manifest.batch_size
            task = LabelledTask(own_share(examples, share), batch=batch, seed=0)
            plan = Plan(30, evaluate_every=10, resend_seconds=NEVER)
            rounds = make_rounds(
                bundle, task, device=name, state=states / name, plan=plan, log=log, threads=1
            )
            members.append(Member(name, rounds, bundle.manifest.shared, log))
        fleet = Fleet("garden", members, slices.known, slices.start, 2, states / "aggregator", log)
        return run_fleet(fleet, in_memory())
