"""Trained values that a run starts from: whichever file holds them, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.options import arguments, spec_of
from broker.aggregator.start_values import read_start_values
from broker.aggregator.storage.store import SNAPSHOT, Identity, Snapshot, write_snapshot
from broker.errors import SliceError
from broker.log import Log
from broker.merging.coordinator import State
from broker.protocol.slice import Tensors
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker, MemoryTransport
from broker.transport.transport import Will
from tests.harness.slices import SliceFile, small_slice

__all__ = ["small_slice"]


def spec(small: SliceFile, start: Path, state: Path) -> AggregatorSpec:
    options = ["--slice", str(small.path), "--start", str(start)]
    options += ["--fleet", "garden", "--state", str(state)]
    return spec_of(arguments().parse_args(options))


@pytest.fixture
def moved(small_slice: SliceFile) -> Tensors:
    return {name: value + np.float32(1) for name, value in small_slice.start.items()}


def test_every_kind_of_file_is_read(small_slice: SliceFile, moved: Tensors, tmp_path: Path) -> None:
    identity = asdict(Identity("orchard", "0" * 64, "sync", "delta", "add"))
    folder = tmp_path / "aggregator"
    folder.mkdir()
    write_snapshot(folder / SNAPSHOT, Snapshot(identity, 1, State("run", 7, moved, {})))
    save_file(moved, tmp_path / "plain.safetensors")
    for path, origin in {
        folder: f"{folder / SNAPSHOT} after round 7",
        folder / SNAPSHOT: f"{folder / SNAPSHOT} after round 7",
        tmp_path / "plain.safetensors": str(tmp_path / "plain.safetensors"),
    }.items():
        found = spec(small_slice, path, tmp_path / "state")
        assert found.start_from == origin
        assert found.start.keys() == moved.keys()
        for name, value in moved.items():
            np.testing.assert_array_equal(found.start[name], value)
    bundle = small_slice.path.parent  # it holds shared.onnx, as a bundle does
    assert read_start_values(bundle).origin == str(small_slice.path)
    assert read_start_values(bundle).tensors.keys() == moved.keys()


def test_a_part_of_the_tensors_is_enough(
    small_slice: SliceFile, moved: Tensors, tmp_path: Path
) -> None:
    save_file({"first/bias": moved["first/bias"], "more": np.zeros(3)}, tmp_path / "a.safetensors")
    found = spec(small_slice, tmp_path / "a.safetensors", tmp_path / "state").start
    np.testing.assert_array_equal(found["first/bias"], moved["first/bias"])
    for name in ("first/kernel", "second/kernel"):
        np.testing.assert_array_equal(found[name], small_slice.start[name])
    assert found.keys() == moved.keys()


def test_what_does_not_fit_is_one_sentence(small_slice: SliceFile, tmp_path: Path) -> None:
    file = tmp_path / "values.safetensors"

    def refusal(start: Path = file) -> str:
        with pytest.raises(SliceError) as caught:
            spec(small_slice, start, tmp_path / "state")
        return str(caught.value)

    assert refusal() == f"{file} cannot be read (No such file or directory)."
    file.write_bytes(b"\x00" * 100)
    assert refusal().startswith(f"{file} is not a .safetensors file (")
    save_file({"other": np.zeros(5, np.float32)}, file)
    assert refusal() == f"{file} holds no tensor of the slice."
    save_file({"first/bias": np.zeros(4, np.float32)}, file)
    assert refusal() == (
        f"{file} has tensor 'first/bias' as float32[4], and the slice as float32[5]."
    )
    save_file({"first/bias": np.full(5, np.inf, np.float32)}, file)
    assert refusal() == f"{file} has tensor 'first/bias', which is not finite."
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty") == (
        f"{tmp_path / 'empty'} is neither a bundle nor the state folder of an aggregator."
    )


def test_only_a_new_run_starts_from_them(
    small_slice: SliceFile, moved: Tensors, tmp_path: Path
) -> None:
    save_file(moved, tmp_path / "a.safetensors")
    broker = MemoryBroker()

    def connect(
        *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
    ) -> Channel:
        link = MemoryTransport(broker, client_id=client_id, subscriptions=subscriptions, will=will)
        return Channel(link, limit=limit, held_limit=2**20)

    def start() -> tuple[Tensors, list[dict[str, str]]]:
        stream = io.StringIO()
        described = spec(small_slice, tmp_path / "a.safetensors", tmp_path / "state")
        with contextlib.ExitStack() as stack:
            made = build_aggregator(described, connect, stack, log=Log(stream))
            shared = made.state.shared
        return shared, [json.loads(line) for line in stream.getvalue().splitlines()]

    shared, said = start()
    np.testing.assert_array_equal(shared["first/bias"], moved["first/bias"])
    started = [event for event in said if event["event"] == "starting"]
    assert [event["values"] for event in started] == [str(tmp_path / "a.safetensors")]
    save_file({name: value + 1 for name, value in moved.items()}, tmp_path / "a.safetensors")
    shared, said = start()
    np.testing.assert_array_equal(shared["first/bias"], moved["first/bias"])
    (ignored,) = (event for event in said if event["event"] == "start_not_used")
    assert ignored["because"] == f"{tmp_path / 'state'} holds a run, which goes on"
