"""`python -m scripts.prometheus_scrape --bundle DIR`: a fleet's numbers in a real Prometheus.

Starts an aggregator with --metrics-port and its own broker, a device that learns digits, and the
system's Prometheus (`scripts/install-prometheus`), all on loopback. Ends when Prometheus knows the
round of the aggregator, and the accuracy of the device with its labels; prints what it knows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from broker.brokers.mosquitto_process import free_port
from broker.child_process import ending_with_parent
from toolkit.fleet.processes import Child, stopping

PATIENCE = 90.0  # seconds
QUERIES = (
    "stemshare_round",
    "stemshare_devices_present",
    'stemshare_device_accuracy{device="pi-1"}',
    'up{job="stemshare"}',
)
CONFIGURATION = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: stemshare
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.prometheus_scrape", description=__doc__
    )
    parser.add_argument("--bundle", type=Path, required=True, help="digits, of any profile")
    args = parser.parse_args(argv)
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is missing: scripts/install-prometheus")
    broker, metrics, port = free_port(), free_port(), free_port()
    link = ["--fleet", "scraped", "--broker", f"mqtt://127.0.0.1:{broker}"]
    children: list[Child] = []
    with tempfile.TemporaryDirectory() as name, stopping(children):
        folder = Path(name)
        serve = ["--embedded", "--slice", str(args.bundle / "shared.onnx")]
        serve += ["--metrics-port", str(metrics), "--state", str(folder / "aggregator")]
        children.append(
            Child("aggregator", "broker.aggregator", [*link, *serve], folder / "aggregator.log")
        )
        learn = ["--id", "pi-1", "--bundle", str(args.bundle), "--task", "digits", "--steps", "10"]
        learn += ["--state", str(folder / "pi-1")]
        children.append(
            Child("device", "firmware_sim.device", [*link, *learn], folder / "device.log")
        )
        found = scraped(folder, metrics, port)
    for query, sample in found.items():
        print(f"{query} = {sample['value'][1]}  {json.dumps(sample['metric'], sort_keys=True)}")


def scraped(folder: Path, metrics: int, port: int) -> dict[str, dict[str, list[str]]]:
    """Runs Prometheus until it has an answer to every query; returns the answers."""
    configuration = folder / "prometheus.yml"
    configuration.write_text(CONFIGURATION.format(port=metrics), encoding="utf-8")
    command = ["prometheus", f"--config.file={configuration}"]
    command += [f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=ending_with_parent())
    try:
        return wait_for_answers(port)
    finally:
        process.terminate()
        process.wait(20)


def wait_for_answers(port: int) -> dict[str, dict[str, list[str]]]:
    deadline = time.monotonic() + PATIENCE
    found: dict[str, dict[str, list[str]]] = {}
    while len(found) < len(QUERIES):
        if time.monotonic() > deadline:
            sys.exit(f"Prometheus has no {[q for q in QUERIES if q not in found]}")
        time.sleep(0.5)
        for query in QUERIES:
            address = f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}"
            try:
                with urlopen(address, timeout=5) as answer:
                    samples = json.load(answer)["data"]["result"]
            except (URLError, OSError):
                continue
            if samples and float(samples[0]["value"][1]) > 0:
                found[query] = samples[0]
    return found


if __name__ == "__main__":
    main()
