"""`python -m scripts.dashboard_load`: what the dashboard of a large fleet costs.

Publishes what devices publish, one event a second each, with a page open in chromium, and prints
the part of a core and the memory that the dashboard takes.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from broker.brokers.mosquitto_process import Mosquitto
from broker.metrics import metrics_text
from broker.protocol.messages import AggregatorState, DeviceState, to_bytes
from broker.protocol.slice import SharedTensor, Slice
from broker.protocol.topics import Topics
from broker.transport.mqtt import MqttTransport
from scripts.screenshots.browser import browser, problems, wait_for_port
from toolkit.fleet.processes import Child, stopping

PORT = 8792
TOPICS = Topics("large")
SLICE = Slice.of(
    [SharedTensor.of(f"layer{i}/kernel", (3, 3, 16, 16), "float32", "") for i in range(6)]
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.dashboard_load", description=__doc__)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args(argv)
    names = [f"pi-{i:03}" for i in range(args.devices)]
    children: list[Child] = []
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name) / "mosquitto") as broker:
        folder = Path(name)
        devices = MqttTransport(broker.address, client_id="devices", keep_session=False)
        state = AggregatorState(status="online", run="r", mode="async", merge="mean")
        devices.publish(TOPICS.aggregator_state, to_bytes(state), retain=True)
        for device in names:
            birth = DeviceState.birth(device, SLICE, {"profile": random.choice(["weak", "strong"])})
            devices.publish(TOPICS.state(device), to_bytes(birth), retain=True)
        options = ["dashboard", "--fleet", TOPICS.fleet, "--broker", str(broker.address)]
        options += ["--http", f"127.0.0.1:{PORT}", "--history", str(folder / "history")]
        children.append(Child("dashboard", "toolkit", options, folder / "dashboard.log"))
        with stopping(children), browser(folder / "chromium") as page:
            wait_for_port(PORT)
            page.get(f"http://127.0.0.1:{PORT}/")
            publish(devices, names, 10.0)
            before, began = cpu_seconds(children[0].pid), time.monotonic()
            sent = publish(devices, names, args.seconds)
            took = time.monotonic() - began
            used = cpu_seconds(children[0].pid) - before
            click = time.monotonic()
            page.find_element("css selector", "[aria-label='light or dark']").click()
            answered = time.monotonic() - click
            found = problems(page)
        devices.close()
    print(f"{sent / took:.0f} events a second from {args.devices} devices, a page open:")
    print(f"{100 * used / took:.1f} % of a core, {PEAK[0] / 2**20:.0f} MiB at most")
    print(f"a click takes {answered:.2f} s; errors in the console: {len(found)}")


PEAK = [0.0]


def publish(devices: MqttTransport, names: Sequence[str], seconds: float) -> int:
    """Publishes for so long, each device once a second; returns the number of events."""
    until, sent, round = time.monotonic() + seconds, 0, int(time.time())
    while time.monotonic() < until:
        began = time.monotonic()
        round += 1
        for device in names:
            values = {"round": round, "accuracy": random.random(), "memory_bytes": 6e7}
            values |= {"memory_cap_bytes": 1.28e8, "sent_bytes": 1e6, "train_loss": 0.3}
            text = metrics_text({f"device_{name}": v for name, v in values.items()})
            devices.publish(TOPICS.metrics(device), text.encode(), retain=True)
            sent += 1
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
    return sent


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process so far, and notes its peak of memory."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    PEAK[0] = 1024.0 * int(status.split("VmHWM:")[1].split()[0])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
