"""The commands of docs/day-with-a-fleet.md, as they stand there and in their order.

A real mosquitto runs what was provisioned, on loopback and on a free port. Whatever ends with & is
started in the background; the page's own exports are the bundles that other tests use too.
Expected: every command succeeds, and what it says is true.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.brokers.mosquitto_process import Mosquitto, free_port
from firmware_sim.bundle.reader import Bundle
from tests.docs.pages import ROOT, Page
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.xdist_group("fleet")
PAGE = Page(ROOT / "docs" / "day-with-a-fleet.md")


@dataclass
class Day:
    """Runs one command after the other in a folder, as a shell would."""

    folder: Path
    toolkit: Callable[..., Any]
    bundles: dict[str, Bundle]
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    port: int = field(default_factory=free_port)
    said: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> None:
        command = command.replace(":8883", f":{self.port}")
        match shlex.split(command.removesuffix("&")):
            case ["toolkit", "export", *words]:
                profile = words[words.index("--profile") + 1]
                shutil.copytree(self.bundles[profile].folder, self.folder / words[-1])
            case ["toolkit", "provision", *words] if "--dynamic" in words:
                self._toolkit("provision", *words, "--port", str(self.port))
            case ["toolkit", *words]:
                self._toolkit(*words)
            case ["export", *settings]:
                for setting in settings:
                    self.monkeypatch.setenv(*setting.split("=", 1))
            case ["(cd", *_]:
                self.stack.enter_context(self._broker())
            case _ if command.endswith("&"):
                self._start(command.removesuffix("&"))
            case _:
                subprocess.run(["sh", "-c", command], cwd=self.folder, check=True, timeout=60)

    def _toolkit(self, *words: str) -> None:
        ran = self.toolkit(*words)
        assert ran.code == 0, (words, ran)
        self.said[" ".join(words[:2])] = ran.out

    def _broker(self) -> Mosquitto:
        folder = self.folder / "fleets" / "garden" / "broker"
        text = (folder / "mosquitto.conf").read_text(encoding="utf-8")
        text = re.sub(r"^listener .*", "", text, flags=re.MULTILINE)
        paths = r"^(plugin_opt_config_file|persistence_location|cafile|certfile|keyfile) "
        text = re.sub(paths, rf"\g<0>{folder}/", text, flags=re.MULTILINE)
        return Mosquitto(folder / "loopback", self.port, extra=text)

    def _start(self, command: str) -> None:
        log = (self.folder / f"{len(list(self.folder.glob('*.log')))}.log").open("wb")
        steps = " --steps 5" if "firmware_sim.device" in command else ""
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}{steps}"], cwd=self.folder, stdout=log, stderr=log
        )

        def end() -> None:
            process.terminate()
            process.wait(30)
            log.close()

        self.stack.callback(end)


@pytest.fixture
def day(
    tmp_path: Path,
    toolkit: Callable[..., Any],
    bundles: dict[str, Bundle],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Day]:
    monkeypatch.chdir(tmp_path)
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("COLUMNS", "200")  # of the terminal
    with ExitStack() as stack:
        yield Day(tmp_path, toolkit, bundles, monkeypatch, stack)


def test_the_page_is_true(day: Day) -> None:
    snapshot = day.folder / "state" / "aggregator" / "snapshot.safetensors"
    for block in PAGE.blocks():
        for command in block.commands:
            if command.startswith("toolkit fleet ls"):
                wait_until(lambda: (day.folder / "state/pi-2").is_dir(), "pi-2")
                wait_until(snapshot.exists, "a merge")
                wait_until(lambda: _is_there(day, "pi-2"), "pi-2 in the fleet")
            day.run(command)
    assert "pi-1" in day.said["fleet ls"]
    assert "weak" in day.said["fleet show"]
    assert day.said["fleet pause"] == "pi-1 has obeyed: pause\n"
    assert "pi-2 runs it" in day.said["rollout powerful.pack"]
    assert day.said["fleet remove"] == "pi-2 has obeyed: remove\n"
    assert "pi-2 is shut out\n" in day.said["provision --fleet"]
    assert "has stopped" in day.said["fleet stop"]
    wait_until(lambda: (day.folder / "state" / "restored").is_dir(), "the new run")


def _is_there(day: Day, name: str) -> bool:
    ran = day.toolkit("fleet", "show", name)
    return bool(ran.code == 0)
