"""The operator of a fleet pauses, resumes and removes a device from the terminal.

An aggregator in a process, two agents in threads, mosquitto. Expected: the device answers, the
fleet goes on without it, and a device that was removed is no longer seen.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.programs import TOPICS, Program, Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.slices import SliceFile
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.xdist_group("fleet")


def test_a_device_obeys_and_the_fleet_goes_on(
    programs: Programs,
    small_slice: SliceFile,
    scripted: Callable[..., ScriptedDevice],
    toolkit: Callable[..., Any],
) -> None:
    aggregator = programs.aggregator("--slice", small_slice.path, "--deadline", "600")
    link = ("--fleet", TOPICS.fleet, "--broker", str(programs.broker))

    def slowly() -> None:
        time.sleep(0.05)  # nobody has to hurry, and the commands have the processor to themselves

    devices = {
        name: scripted(name, small_slice.slice, seed=ord(name), pace=slowly) for name in "ab"
    }
    aggregator.wait_for("merged", devices=2)

    def seen(name: str) -> dict[str, Any]:
        fleet = json.loads(toolkit("fleet", "ls", "--json", *link).out)
        return next((d for d in fleet["devices"] if d["name"] == name), {})

    said = toolkit("fleet", "pause", "a", "--reason", "new fan", *link)
    assert (said.code, said.out) == (0, "a has obeyed: pause\n")
    wait_until(lambda: seen("a")["activity"] == "paused", "a paused")
    assert seen("a")["why"] == "operator: new fan"
    sent = len(devices["a"].updates)
    merged = aggregator.history("merged")[-1]["round"]
    aggregator.wait_for("merged", round=merged + 5, devices=1)  # nobody waits for it
    assert len(devices["a"].updates) <= sent + 1

    assert toolkit("fleet", "resume", "a", *link).out == "a has obeyed: resume\n"
    wait_until(lambda: len(devices["a"].updates) > sent + 3, "a goes on")

    assert toolkit("fleet", "remove", "a", *link).out == "a has obeyed: remove\n"
    wait_until(lambda: devices["a"].ended, "a ended")
    wait_until(lambda: not seen("a"), "a forgotten")
    left = toolkit("fleet", "show", "c", *link)
    assert "has no device 'c'" in left.refusal
    never = toolkit("fleet", "pause", "c", "--wait", "0.3", *link)
    assert "has not answered within 0.3 s" in never.refusal
    shown = toolkit("fleet", "show", "b", *link).out
    assert "3 tensors, 200 B as float32" in shown

    stopped = toolkit("fleet", "stop", *link)
    assert stopped.out == "the aggregator of orchard has stopped; its devices wait\n"
    assert aggregator.exit_code() == 0
    last = aggregator.history("offline")[-1]["round"]
    assert "has not answered" in toolkit("fleet", "stop", "--wait", "0.3", *link).refusal
    snapshot = programs.folder / "aggregator" / "snapshot.safetensors"
    refused = toolkit("fleet", "start", "--from", snapshot, *link)
    assert "say --slice FILE for each kind of device" in refused.refusal
    begin = ("--from", snapshot, "--slice", small_slice.path, "--state", programs.folder / "again")
    again = Program(
        "again",
        "toolkit",
        ["fleet", "start", *link, *map(str, begin), "--", "--rounds", "3"],
        programs.folder / "again.jsonl",
    )
    programs.children.append(again)
    assert again.wait_for("starting")["values"].endswith(f"after round {last}")
    assert again.wait_for("merged", devices=1)["round"] == 1, "b follows into the new run"
    assert again.exit_code() == 0
