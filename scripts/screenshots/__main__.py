"""Runs a fleet of real devices that learn digits, and takes the pictures of docs/dashboard.md."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.brokers.mosquitto_process import Mosquitto
from broker.transport.address import Credentials, parse_address
from scripts.screenshots.browser import browser, prefer, problems, resize, wait_for_port
from toolkit.fleet.processes import Child, stopping
from toolkit.observing.link import Link
from toolkit.observing.operator import operating

PORT = 8791
DEVICES = (
    ("bench-1", "powerful", "0.3:1", 1.0),
    ("gate", "weak", "0:0.05", 0.6),
    ("greenhouse", "weak", "0.05:0.12", 0.6),
    ("roof", "weak", "0.12:0.2", 0.6),
    ("shed", "weak", "0.2:0.3", 0.6),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots", description=__doc__)
    add = parser.add_argument
    add("--bundles", type=Path, default=Path("build"), help="folder with weak and powerful")
    add("--work", type=Path, default=Path("build/screenshots"), help="logs and state")
    add("--out", type=Path, default=Path("docs/dashboard"), help="where the pictures go")
    add("--rounds", type=int, default=24, help="that are merged before the pictures are taken")
    args = parser.parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    children: list[Child] = []
    with Mosquitto(args.work / "mosquitto") as broker, stopping(children):
        start(children, args, str(broker.address))
        with browser(args.work / "chromium") as driver:
            wait_for_port(PORT)
            driver.get(f"http://127.0.0.1:{PORT}/")
            wait_for(driver, args.rounds, children)
            children.pop().stop()  # the last device goes offline
            pause("roof", str(broker.address))
            time.sleep(4.0)
            take(driver, args.out)
            if found := problems(driver):
                raise SystemExit(f"the console says: {found[0][:500]}")


def start(children: list[Child], args: Any, url: str) -> None:
    """Starts aggregator, dashboard and devices, in this order."""
    common = ["--broker", url, "--fleet", "garden"]
    slices = [f"--slice={args.bundles / p / 'shared.onnx'}" for p in ("weak", "powerful")]

    def child(name: str, module: str, *options: str) -> None:
        children.append(Child(name, module, [*options, *common], args.work / f"{name}.log"))

    state = args.work / f"state-{time.time_ns()}"
    child(
        "aggregator",
        "broker.aggregator",
        *slices,
        *("--state", str(state / "aggregator"), "--deadline", "4", "--quorum", "3"),
        *("--rounds", "200", "--merge", "mean"),
    )
    child("dashboard", "toolkit", "dashboard", "--http", f"127.0.0.1:{PORT}")
    for name, profile, share, rate in DEVICES:
        child(
            name,
            "firmware_sim.device",
            *("--bundle", str(args.bundles / profile), "--task", "digits", "--id", name),
            *("--state", str(state / name), "--share", share, "--steps", "6"),
            *("--rate", str(rate)),
        )


def pause(device: str, url: str) -> None:
    """Lets a device pause, as `toolkit fleet pause` does."""
    with operating("garden", Link(parse_address(url), Credentials()), None) as operator:
        operator.tell(device, "pause", reason="the roof is being mended", patience=10.0)


def wait_for(driver: Any, rounds: int, children: Sequence[Child]) -> None:
    """Returns when the page shows that round."""
    until = time.monotonic() + 180
    while time.monotonic() < until:
        for child in children:
            child.check()
        found = driver.find_elements("id", "round")
        if found and int(found[0].text.split("/")[0] or 0) >= rounds:
            return
        time.sleep(0.5)
    raise SystemExit("the page does not show the rounds.")


def take(driver: Any, out: Path) -> None:
    """Takes the pictures: light and dark on a desk, and on a phone."""
    for theme in ("light", "dark"):
        prefer(driver, theme)
        for name, width in (("desk", 1360), ("phone", 390)):
            resize(driver, width, 900)
            time.sleep(2.5)
            height = driver.execute_script("return document.documentElement.scrollHeight")
            resize(driver, width, min(height, 2600))
            time.sleep(2.5)
            driver.save_screenshot(str(out / f"{name}-{theme}.png"))


if __name__ == "__main__":
    main()
