"""Runs the scenario on every broker and prints the matrix; `make brokers` installs them first.

    python -m scripts.brokers [NAME …] [--folder build/brokers] [--json]

Exit code 1 if a broker that is installed failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from profiles import load_profile
from scripts.brokers import scenario
from scripts.brokers.launchers import (
    Aedes,
    Ejabberd,
    Embedded,
    Launcher,
    Mosquitto,
    NotInstalled,
    RabbitMQ,
)
from toolkit.errors import ToolkitError
from toolkit.terminal import quiet_terminal

BROKERS: dict[str, Callable[[Path], Launcher]] = {
    "mosquitto": Mosquitto,
    "embedded": Embedded,
    "rabbitmq": RabbitMQ,
    "rabbitmq-cluster": lambda folder: RabbitMQ(folder, nodes=3),
    "ejabberd": Ejabberd,
    "aedes": Aedes,
}
# The stem has 166 kB: whole, in two packets of a broker that takes 120 kB, and in many.
PACKETS = {"whole": 900_000, "120 kB": 120_000, "parts": 16_384}
STEPS = (
    "rounds",
    "late joiner",
    "device killed",
    "aggregator killed",
    "broker killed",
    "everything once",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("brokers", nargs="*", metavar="NAME", help=f"of {', '.join(BROKERS)}")
    parser.add_argument("--folder", type=Path, default=Path("build/brokers"))
    parser.add_argument("--json", action="store_true", help="print the matrix for scripts")
    args = parser.parse_args()
    if unknown := [name for name in args.brokers if name not in BROKERS]:
        parser.error(f"there is no broker {unknown[0]!r}; there are {', '.join(BROKERS)}")
    console = Console(stderr=True)
    bundles = export(args.folder)
    rows = [
        row
        for name in args.brokers or BROKERS
        for row in try_broker(name, bundles, args.folder, console)
    ]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        Console().print(table(rows))
    sys.exit(any(row["failure"] for row in rows))


def try_broker(
    name: str, bundles: dict[str, Path], folder: Path, console: Console
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for packets, part_bytes in PACKETS.items():
        own = (folder / name / packets.replace(" ", "-")).resolve()
        for leftover in ("fleet", "broker"):
            shutil.rmtree(own / leftover, ignore_errors=True)
        launcher = BROKERS[name](
            (folder / name / "installed").resolve() if name == "aedes" else own / "broker"
        )
        row: dict[str, Any] = {"broker": launcher.name, "version": "", "packets": packets}
        row["failure"] = ""
        if len(launcher.ports) > 1:
            row["broker"] = f"{launcher.name}, cluster of {len(launcher.ports)}"
        rows.append(row)
        begin, done = time.monotonic(), []
        try:
            row["version"] = launcher.version()
            for step in scenario.run(launcher, bundles, own / "fleet", part_bytes):
                done.append(step)
                console.print(f"{row['broker']}, {packets}: {step}", highlight=False)
        except NotInstalled as missing:
            row["failure"] = f"not installed: {missing}"
        except (scenario.Failed, RuntimeError, ToolkitError) as failure:
            row["failure"] = str(failure)
            console.print(f"{row['broker']}, {packets}: [red]{failure}[/]", highlight=False)
        row |= {"passed": done, "seconds": round(time.monotonic() - begin, 1)}
    return rows


def export(folder: Path) -> dict[str, Path]:
    """The bundles of both branches, made once."""
    bundles = {name: folder / "bundles" / name for name in ("weak", "powerful")}
    if not all((path / "manifest.json").exists() for path in bundles.values()):
        with quiet_terminal() as terminal, terminal.status("exporting two bundles"):
            from toolkit.branch.user_model import load_branch
            from toolkit.export.bundle import export as write
            from toolkit.export.calibration import calibration_for

            for name, path in bundles.items():
                branch = load_branch(f"{Path(__file__).with_name('branches.py')}:{name}")
                examples = calibration_for(branch, None, None)
                write(branch, load_profile(name), path, calibration=examples)
    return bundles


def table(rows: list[dict[str, Any]]) -> Table:
    """A row for each broker; where it did not pass, the first step that failed."""
    shown = Table("broker", "version", *PACKETS)
    for broker in dict.fromkeys(row["broker"] for row in rows):
        own = {row["packets"]: row for row in rows if row["broker"] == broker}
        cells = [_cell(own[packets]) for packets in PACKETS]
        shown.add_row(broker, own["whole"]["version"], *cells)
    return shown


def _cell(row: dict[str, Any]) -> str:
    if not row["failure"]:
        return f"passed, {row['seconds']:.0f} s"
    missing = [step for step in STEPS if step not in row["passed"]]
    return f"not: {missing[0]}" if row["version"] else "not installed"


if __name__ == "__main__":
    main()
