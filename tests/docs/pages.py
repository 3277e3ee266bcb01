"""Pages of the documentation: their blocks of commands, and a way to run them as written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds until a block is given up
BUNDLE, SAID = "bundle", "said"  # in the folder of an export that was made
# Answers the folder of an export by its key; the function makes it, if there is none yet.
Exports = Callable[[str, Callable[[Path], None]], Path]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n\Z")
_FILE = re.compile(r"`([\w./-]+\.\w+)`:\n\n\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: commands (`sh`), or a file that the text before it names."""

    language: str
    text: str
    not_run: str  # why, if the page says so
    file: str  # what the paragraph before it ends with, as `name.py`:

    @property
    def commands(self) -> list[str]:
        """One a line, without comments; a line that ends in a backslash goes on."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        bare = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
        return [line for line in bare if line]


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def blocks(self) -> Iterator[Block]:
        text = self.path.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            before = text[: match.start()]
            why, file = _NOT_RUN.search(before), _FILE.search(before)
            yield Block(match[1], match[2], why[1] if why else "", file[1] if file else "")


@dataclass
class Session:
    """Runs a page's blocks in order, in one folder.

    `toolkit` runs in this process, since TensorFlow takes longest to start; bash runs the rest. An
    export that another page has done with the same command is not done again, but copied.
    """

    folder: Path
    toolkit: Callable[[Path, list[str]], str]
    exports: Exports
    shorter: Mapping[str, str]
    port: int = field(default_factory=lambda: _free_port())

    def run(self, block: Block) -> str:
        """What the commands printed; the test fails with the command that did."""
        if block.file:
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            return self._bash([f"python -c {shlex.quote(block.text)}"])
        if block.language != "sh" or block.not_run:
            return ""
        said = ""
        script: list[str] = []
        for command in block.commands:
            command = self._shortened(command)
            if command.startswith("toolkit "):
                said += self._bash(script)
                script = []
                said += self._toolkit(command)
            else:
                script.append(command)
        return said + self._bash(script)

    def _shortened(self, command: str) -> str:
        for long, short in self.shorter.items():
            command = command.replace(long, short)
        # Many tests run at once, so each page has a port of its own.
        programs = r"-m broker.aggregator|-m firmware_sim.device"
        programs += r"|examples/plain_client/device.py|examples/live_vibration/machine.py"
        if re.match(rf"python ({programs}) ", command):
            broker = f" --broker mqtt://127.0.0.1:{self.port}"
            command = re.sub(r"( &)?$", rf"{broker}\1", command, count=1)
        return command

    def _toolkit(self, command: str) -> str:
        arguments = shlex.split(command)[1:]
        if arguments[0] not in ("export", "fit"):
            return self.toolkit(self.folder, arguments)
        out = arguments[arguments.index("--out") + 1] if "--out" in arguments else ""
        key = export_key(arguments) + self._sources(arguments)

        def make(folder: Path) -> None:
            (folder / SAID).write_text(self.toolkit(self.folder, arguments), encoding="utf-8")
            if out:
                shutil.copytree(self.folder / out, folder / BUNDLE)

        kept = self.exports(key, make)
        if out and not (self.folder / out).exists():
            shutil.copytree(kept / BUNDLE, self.folder / out)
        return (kept / SAID).read_text(encoding="utf-8")

    def _sources(self, arguments: list[str]) -> str:
        """What the files say that a command names: another branch, profile or tuning is another."""
        files = (self.folder / argument.partition(":")[0] for argument in arguments)
        return "".join(f.read_text("utf-8") for f in files if f.suffix in (".py", ".toml", ".json"))

    def _bash(self, commands: list[str]) -> str:
        """Every command must succeed, also those in the background, which are waited for."""
        if not commands:
            return ""
        waiting = "for job in $(jobs -p); do wait $job; done"
        script = "\n".join(["set -e", *commands, waiting])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session that was started here
            out, err = process.communicate()
            pytest.fail(f"no end after {PATIENCE:g} s: {commands}\n{err[-2000:]}")
        assert process.returncode == 0, f"{commands}\n{out[-1000:]}\n{err[-2000:]}"
        return out


def export_key(arguments: Sequence[str]) -> str:
    """What is the same for two exports of the same bundle: all but their folder."""
    return re.sub(r" --out \S+", "", shlex.join(arguments))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


Pages = Callable[..., list[Page]]
StartSession = Callable[[Mapping[str, str]], Session]
