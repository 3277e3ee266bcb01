"""A fleet of an emulated Raspberry Pi and a native device; run by `scripts/pi`, which makes both.

Both run from packs of `toolkit pack` over mosquitto with TLS. The Pi is started with the very
command of its systemd unit, in the arm64 tree.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from broker.brokers.mosquitto_process import Mosquitto, free_port
from broker.protocol.wire import below
from firmware_sim.bundle.reader import open_bundle
from firmware_sim.packs.installed import Packs
from firmware_sim.training.checkpoint import Checkpoints
from toolkit.fleet.processes import Child, stopping
from toolkit.provisioning.fleet import Provisioned, provision
from toolkit.provisioning.pack import pack
from toolkit.provisioning.units import DEVICE_UNIT

MB = 1e6
KIB = 2**10
MIB = 2**20
FLEET, PI, NATIVE = "emulated", "pi", "native"
PROFILES = {PI: "raspberry-pi-zero-2", NATIVE: "powerful"}
SHARES = {PI: "0:0.2", NATIVE: "0.2:1"}
ROUNDS = 5
STEPS = 20
PATIENCE = 900.0  # seconds; emulation is slow
BATCH, MINI_BATCHES = 32, 100  # of the round of which the cost of checks is a part
LIMIT_MB = 120  # that an installation may take
OWN_PEAK = "import re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
TREE_PYTHON = "/opt/stemshare/bin/python"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
OUR_OWN = ("broker", "firmware_sim", "profiles", "toolkit", "stemshare")
OF_THE_VENV = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # what a venv starts with


class Emulated:
    """The Pi: a program in the tree, with its log where a person can read it afterwards."""

    def __init__(self, tree: Path, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                ["chroot", tree, *command],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )

    def code(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        if self.code() is None:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(work: Path, tree: Path) -> None:
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(mode=0o700, parents=True)
    state = tree / "var/lib/stemshare-device"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(mode=0o700, parents=True)

    bundles = {name: export(run, profile, "digits") for name, profile in PROFILES.items()}
    made = provision(
        FLEET, list(PROFILES), run / "fleet", host_names=["127.0.0.1"], port=free_port()
    )
    packs = {
        name: pack(
            bundles[name], made.folder, name, fleet=FLEET,
            arguments=["--task", "digits", "--share", SHARES[name], "--steps", str(STEPS)],
        ).file
        for name in PROFILES
    }  # fmt: skip
    shutil.copy(packs[PI], state / "device.pack")
    (tree / "etc/stemshare").mkdir(exist_ok=True)
    shutil.copy(made.credentials(PI) / "trust.key", tree / "etc/stemshare/trust.key")

    begin = time.monotonic()
    native_state = run / "native-state"
    trust = made.credentials(NATIVE) / "trust.key"
    children: list[Child] = []
    with broker(made, run), stopping(children):
        slices = [p for b in bundles.values() for p in ("--slice", str(b / "shared.onnx"))]
        children.append(
            Child("aggregator", "broker.aggregator", [
                *credentials(made), *slices, "--state", str(run / "aggregator-state"),
                "--quorum", "2", "--rounds", str(ROUNDS), "--deadline", str(PATIENCE),
            ], run / "aggregator.jsonl")
        )  # fmt: skip
        children.append(
            Child(NATIVE, "firmware_sim.device", [
                "--pack", str(packs[NATIVE]), "--trust", str(trust), "--state", str(native_state),
            ], run / "native.jsonl")
        )  # fmt: skip
        command = command_of(made.credentials(PI) / DEVICE_UNIT)
        pi = Emulated(tree, command, run / "pi.jsonl")
        try:
            wait(children, pi)
        finally:
            pi.stop()
    seconds = time.monotonic() - begin

    logs = {name: events(run / f"{name}.jsonl") for name in PROFILES}
    thetas = {PI: theta(state), NATIVE: theta(native_state)}
    show(tree, logs, thetas, seconds)
    show_cost_of_checks(tree, export(run, PROFILES[PI], "cifar10"))


def export(run: Path, profile: str, task: str) -> Path:
    target = run / f"{profile}-{task}"
    say(f"exporting {task} for {profile}")
    toolkit = str(Path(sys.executable).with_name("toolkit"))
    options = ["--task", task, "--topology", "cascading", "--out", str(target)]
    command = [toolkit, "export", "--profile", profile, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def broker(made: Provisioned, run: Path) -> Mosquitto:
    """The real broker with the provisioned settings, but on loopback alone."""
    text = (made.broker / "mosquitto.conf").read_text(encoding="utf-8")
    text = re.sub(r"^listener .*", "", text, flags=re.MULTILINE)
    paths = r"^(password_file|acl_file|persistence_location|cafile|certfile|keyfile) "
    text = re.sub(paths, rf"\g<0>{made.broker}/", text, flags=re.MULTILINE)
    return Mosquitto(run / "mosquitto", made.fleet.port, extra=text)


def credentials(made: Provisioned) -> list[str]:
    own = made.credentials("aggregator")
    options = {
        "fleet": FLEET,
        "broker": made.fleet.url,
        "user": "aggregator",
        "password-file": own / "password",
        "ca-file": own / "ca.pem",
        "signing-key": own / "signing.key",
        "members": own / "members",
    }
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def command_of(unit: Path) -> list[str]:
    """What the unit starts."""
    found = re.search(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].split()


def wait(children: list[Child], pi: Emulated) -> None:
    say(f"{ROUNDS} rounds of {STEPS} mini-batches: an emulated Pi, and a native device")
    deadline = time.monotonic() + PATIENCE
    while pi.code() is None or any(child.running for child in children):
        for child in children:
            child.check()
        if pi.code():
            sys.exit(f"pi: the emulated device failed: {last_line(pi.log)}")
        if time.monotonic() > deadline:
            sys.exit(f"pi: not done in {PATIENCE:g} s; the Pi last said: {last_line(pi.log)}")
        time.sleep(0.2)
    for child in children:
        child.check()
    if pi.code():
        sys.exit(f"pi: the emulated device failed: {last_line(pi.log)}")


def events(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def last_line(log: Path) -> str:
    return (log.read_text(encoding="utf-8", errors="replace").splitlines() or ["nothing"])[-1]


def theta(state: Path) -> str:
    """sha256 of θ_shared in the checkpoint of a device that ran from a pack."""
    packs = Packs(state)
    installed = packs.current()
    packs.close()
    assert installed is not None
    index = installed.index
    folder = state / f"model-{index.model[:16]}"
    checkpoint = Checkpoints(folder, device=index.device, bundle=index.model).load()
    assert checkpoint is not None and checkpoint.round == ROUNDS, "it did not finish"
    values = below("model/", checkpoint.learner)
    found = hashlib.sha256()
    shared = open_bundle(installed.bundle).manifest.shared
    for tensor in sorted(shared.tensors, key=lambda t: t.name):
        found.update(f"{tensor.name} {tensor.shape}".encode() + values[tensor.name].tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Installation:
    """What pip put into the tree, without what a new virtual environment has anyway."""

    packages: tuple[str, ...]
    bytes: int
    our_bytes: int

    @classmethod
    def of(cls, tree: Path) -> Installation:
        (site,) = (tree / "opt/stemshare/lib").glob("python3.*/site-packages")
        added = [p for p in site.iterdir() if p.name.split("-")[0] not in OF_THE_VENV]
        ours = [p for p in added if p.name.split("-")[0] in OUR_OWN]
        return cls(
            tuple(sorted(p.stem for p in added if p.suffix == ".dist-info")),
            sum(map(size_of, added)),
            sum(map(size_of, ours)),
        )


def show(
    tree: Path, logs: dict[str, list[dict[str, Any]]], thetas: dict[str, str], seconds: float
) -> None:
    both = (PI, NATIVE)
    installed = Installation.of(tree)
    about = "import platform; print(platform.machine(), platform.python_version()); "
    machine, version, bare = python(["chroot", tree, TREE_PYTHON], about + OWN_PEAK).split()
    bare_native = python([sys.executable], OWN_PEAK)
    peaks = {name: last(logs[name], "ended")["peak_bytes"] / MIB for name in both}
    ends = [last(logs[name], "finished") for name in both]

    table = Table("", "emulated Pi", "native device", title="A Raspberry Pi in emulation")
    table.add_row("machine", f"{machine}, Python {version}", "this one")
    table.add_row("profile", *(PROFILES[name] for name in both))
    table.add_row("installed", f"{installed.bytes / MB:.1f} MB", "")
    table.add_row("of it our own", f"{installed.our_bytes / MB:.1f} MB", "")
    table.add_row(
        "peak memory", f"{peaks[PI]:.0f} MiB, qemu's included", f"{peaks[NATIVE]:.0f} MiB"
    )
    table.add_row(
        "bare Python",
        f"{int(bare) / KIB:.0f} MiB, qemu's included",
        f"{int(bare_native) / KIB:.0f} MiB",
    )
    table.add_row("rounds", *(str(end["round"]) for end in ends))
    table.add_row("accuracy", *(f"{end['accuracy']:.1%}" for end in ends))
    table.add_row("θ_shared, sha256", *(f"{thetas[name][:16]}…" for name in both))
    Console(width=100).print(table)
    print(f"installed: {', '.join(installed.packages)}")
    print(f"the fleet took {seconds:.0f} s; its logs are in build/pi/run")
    if len(set(thetas.values())) != 1:
        sys.exit("pi: FAILED: the two devices did not end with the same θ_shared")
    print(f"both ended with the same θ_shared: {thetas[PI]}")
    if any(package.startswith("tensorflow") for package in installed.packages):
        sys.exit("pi: FAILED: TensorFlow was installed")
    if installed.bytes > LIMIT_MB * MB:
        sys.exit(f"pi: FAILED: the installation takes more than {LIMIT_MB} MB")
    print(f"the installation has no TensorFlow and takes less than {LIMIT_MB} MB")


def show_cost_of_checks(tree: Path, bundle: Path) -> None:
    """Prints what believing a θ_shared takes of a round: its signature, and its plausibility."""
    shutil.copy(bundle / "model.tflite", tree / "opt/measured.tflite")
    command = [TREE_PYTHON, "-m", "firmware_sim.measure", "/opt/measured.tflite"]
    options = ["--device", "--steps", "3", "--batch", str(BATCH)]
    ran = subprocess.run(
        ["chroot", tree, *command, *options],
        env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(ran.stdout)
    check, step = found["check_seconds"], statistics.median(found["step_seconds"])
    print(
        f"CIFAR-10's lightweight branch, {found['runtime']}: checking θ_shared takes "
        f"{check * 1e3:.0f} ms, a mini-batch of {BATCH} {step * 1e3:.0f} ms; "
        f"of a round of {MINI_BATCHES} that is {check / (MINI_BATCHES * step):.2%}"
    )


def last(log: list[dict[str, Any]], event: str) -> dict[str, Any]:
    return next(e for e in reversed(log) if e["event"] == event)


def python(interpreter: list[str | Path], program: str) -> str:
    command = [*interpreter, "-c", program]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return ran.stdout


def size_of(path: Path) -> int:
    """What it takes on disk, in bytes, compiled modules included."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(512 * file.lstat().st_blocks for file in files)


def say(text: str) -> None:
    print(f"pi: {text}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
