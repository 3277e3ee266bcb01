"""What strangers write reaches no terminal as they wrote it.

The broker is real and lets everybody in. The aggregator runs on a pseudo-terminal, as it does for a
person; `mallory` is born with escape sequences, overrides of the direction and line breaks in what
it says of itself, in the name of its topic, and in its tensors. Then mallory speaks as an
aggregator, and refuses a device with such a text.
"""

import io
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.brokers.mosquitto_process import Mosquitto
from broker.log import Log
from broker.protocol.messages import AggregatorState, DeviceState, Verdict, to_bytes
from broker.protocol.topics import Topics
from broker.transport.mqtt import MqttTransport
from firmware_sim.errors import FleetRefused

PATIENCE = 30.0  # seconds
BIDI = "\u202egnp.exe\u2066"
EVIL = f"\x1b[2J\x1b]0;owned\x07{BIDI}\r\n12:00:00  merged        round=9\x9b1A"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u2066\r\n12:00:00  merged        round=9\x9b1A"


class Terminal:
    """A program on a pseudo-terminal, and everything that it has written there."""

    def __init__(self, *command: str) -> None:
        ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        self._end = ours
        self.written = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.written:
            assert time.monotonic() < deadline, self.written
            try:
                self.written += os.read(self._end, 65_536).decode()
            except BlockingIOError:
                time.sleep(0.01)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._end)


@pytest.fixture
def mallory(mosquitto: Mosquitto) -> Iterator[Callable[[str, bytes], None]]:
    """Publishes whatever it likes, retained."""
    transport = MqttTransport(mosquitto.address, client_id="mallory")

    def say(topic: str, payload: bytes) -> None:
        transport.publish(topic, payload, retain=True)
        assert transport.flush(PATIENCE)

    yield say
    transport.close()


def test_a_terminal_shows_births_and_topics_without_their_controls(
    mosquitto: Mosquitto,
    small_slice: Any,
    topics: Topics,
    tmp_path: Path,
    mallory: Callable[[str, bytes], None],
) -> None:
    link = ("--fleet", topics.fleet, "--broker", str(mosquitto.address))
    files = ("--slice", str(small_slice.path), "--state", str(tmp_path / "aggregator"))
    terminal = Terminal("broker.aggregator", *link, *files)
    try:
        terminal.wait_for("connected")
        about = {"profile": EVIL[:60], "branch": BIDI}
        mallory(
            topics.state("mallory"),
            to_bytes(DeviceState.birth("mallory", small_slice.slice, about)),
        )
        terminal.wait_for(rf"branch={BIDI.encode('unicode_escape').decode()}")
        mallory(topics.update(BIDI), b"")  # mosquitto itself refuses controls in a topic
        terminal.wait_for(rf"device={BIDI.encode('unicode_escape').decode()}")
        described = {"shape": [1], "dtype": "float32", "fingerprint": "f" * 64}
        odd = DeviceState(device="odd", online=True, tensors_shared={EVIL: described})
        mallory(topics.state("odd"), to_bytes(odd))
        terminal.wait_for("device=odd")
    finally:
        terminal.close()
    clean = terminal.written.replace("\r\n", "\n")
    assert [c for c in clean if not c.isprintable() and c != "\n"] == []
    assert [line for line in clean.splitlines() if line.startswith("12:00:00  merged")] == []


def test_a_refusal_in_the_aggregators_name_is_reported_in_one_clean_line(
    small_slice: Any,
    topics: Topics,
    scripted: Callable[..., Any],
    mallory: Callable[[str, bytes], None],
) -> None:
    refused = Verdict(device="pi-1", about="join", run="r", accepted=False, text=EVIL)
    mallory(topics.aggregator_state, to_bytes(AggregatorState(status="online", run="r")))
    device = scripted("pi-1", small_slice.slice)
    deadline = time.monotonic() + PATIENCE
    while not device.ended:  # a refusal counts once for each time that the device has asked
        assert time.monotonic() < deadline, device.log.getvalue()
        mallory(topics.verdict("pi-1"), to_bytes(refused))
        time.sleep(0.1)
    with pytest.raises(FleetRefused) as caught:
        device.finish()
    assert caught.value.report == f"error: the aggregator refused this device: {SHOWN}"
    stream = io.StringIO()
    Log(stream, as_json=False).event("refused", text=EVIL, reason=caught.value)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable() and line.count(SHOWN) == 2
