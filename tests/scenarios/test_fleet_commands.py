"""Command lines that are wrong, and users who change their mind.

Both programs are started as a user would start them. What cannot work is said in one sentence that
names what to change, with exit code 1 (or 2 for the form of the command line), without a traceback
and without a password. What may still come to work, as a broker that nobody has started yet, is
logged and tried again. Ctrl-C ends either program at once, and says what is kept.
"""

import importlib
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from broker.brokers.mosquitto_process import Mosquitto, free_port
from firmware_sim.bundle.reader import Bundle
from tests.harness.commands import Ended, end_used_processes, run, run_in_a_used_process
from tests.harness.programs import Program, Programs
from tests.harness.slices import SliceFile

AGGREGATOR, DEVICE = "broker.aggregator", "firmware_sim.device"
PASSWORD = "geheim-4711"
fleet_group = pytest.mark.xdist_group("fleet")  # what needs the bundles

Arguments = tuple[object, ...]


@pytest.fixture(scope="module", autouse=True)
def used_processes_end() -> Iterator[None]:
    yield
    end_used_processes()


def sentence(module: str, *arguments: object) -> str:
    """What a refused command says: one sentence, and only log events beside it."""
    ended = run_in_a_used_process(module, *arguments)
    assert (ended.code, ended.out) == (1, ""), ended
    said = [line for line in ended.err.splitlines() if not line.startswith("{")]
    assert len(said) == 1, ended.err
    assert re.fullmatch(r"error: [^\n]+\.", said[0]), said
    assert PASSWORD not in ended.err
    return said[0].removeprefix("error: ")


def misuse(module: str, ended: Ended) -> str:
    """What is said of a command line that has the wrong form, after its usage."""
    assert (ended.code, ended.out) == (2, ""), ended
    assert "Traceback" not in ended.err
    *usage, said = ended.err.splitlines()
    assert usage[0].startswith(f"usage: python -m {module} ")
    return said.removeprefix(f"python -m {module}: error: ")


@pytest.fixture
def slice_path(small_slice: SliceFile) -> Path:
    path: Path = small_slice.path
    return path


# --- the aggregator -------------------------------------------------------------------------------


BAD_SETTINGS = {
    "no scheme": (["--broker", "127.0.0.1:1883"], "has no mqtt:// or mqtts:// in front"),
    "another scheme": (["--broker", "http://broker"], "looks like mqtt://host:1883"),
    "no host": (["--broker", f"mqtt://me:{PASSWORD}@:1883"], "names no host"),
    "no port": (["--broker", f"mqtt://me:{PASSWORD}@host:many"], "not a number from 1 to 65535"),
    "user twice": (["--broker", f"mqtt://me:{PASSWORD}@h", "--user", "you"], "user is given twice"),
    "fleet": (["--fleet", "a/b"], "a fleet cannot be called 'a/b'"),
    "quorum": (["--quorum", "0"], "quorum of 0"),
    "rounds": (["--rounds", "0"], "0 rounds"),
    "deadline": (["--deadline", "nan"], "deadline of nan seconds"),
    "norm": (["--clip-norm", "-1"], "above 0, not -1.0"),
    "liars": (["--merge", "multi-krum"], "needs byzantine ≥ 1"),
    "krum": (
        ["--merge", "multi-krum", "--byzantine", "1", "--quorum", "4"],
        "needs at least 5 devices, but there are 4",
    ),
    "robust alone": (["--merge", "median", "--mode", "async"], "sees one at a time; use sync"),
    "optimizer": (["--exchange", "gradient", "--optimizer", "sgd"], "'sgd' is not understood"),
    "momentum": (["--optimizer", "momentum:1"], "'momentum:1' is not understood"),
    "inbox": (["--inbox-mib", "0"], "an inbox of 0 MiB holds nothing"),
    "parts": (["--part-bytes", "100"], "--part-bytes must be at least 4096"),
    "no password": (["--user", "me", "--password-file", "none.txt"], "none.txt cannot be read"),
}


@pytest.mark.parametrize(("options", "said"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_that_cannot_work(
    options: list[str], said: str, slice_path: Path, tmp_path: Path
) -> None:
    base = ("--slice", slice_path, "--fleet", "orchard", "--state", tmp_path / "state")
    assert said in sentence(AGGREGATOR, *base, *options)


def test_slices_that_are_none(slice_path: Path, tmp_path: Path) -> None:
    base = ("--fleet", "orchard", "--state", tmp_path / "state")
    files = {"missing": None, "text": b"hello", "cut off": slice_path.read_bytes()[:-9]}
    said = {}
    for name, content in files.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        said[name] = sentence(AGGREGATOR, "--slice", path, *base).removeprefix(f"the slice '{path}")
    assert said == {
        "missing": "' cannot be read: No such file or directory.",
        "text": "' is not an ONNX file, or it is cut off.",
        "cut off": "' is not an ONNX file, or it is cut off.",
    }
    assert not (tmp_path / "state").exists()


def test_slices_that_contradict_each_other(slice_path: Path, tmp_path: Path) -> None:
    model = onnx.load(slice_path)
    model.graph.node[1].op_type = "Mul"
    other = tmp_path / "other.onnx"
    onnx.save(model, other)
    base = ("--fleet", "orchard", "--state", tmp_path / "state")
    said = sentence(AGGREGATOR, "--slice", slice_path, "--slice", other, *base)
    assert said.startswith("two slices contradict each other: tensor 'first/")
    assert "Mul" in said
    assert "Add" in said


def test_state_folders_that_cannot_be_used(
    programs: Programs, slice_path: Path, tmp_path: Path
) -> None:
    base = ("--slice", slice_path, "--fleet", "orchard", "--broker", programs.broker)
    running = programs.aggregator("--slice", slice_path)
    running.wait_for("connected")
    used = tmp_path / "aggregator"
    assert sentence(AGGREGATOR, *base, "--state", used) == f"another aggregator is using {used}."
    running.stop()
    garden = (*base, "--fleet", "garden")  # the last one counts
    said = sentence(AGGREGATOR, *garden, "--state", used)
    assert f"{used} belongs to" in said
    assert "'orchard'" in said
    assert said.endswith("give another --state.")
    file = tmp_path / "file"
    file.write_bytes(b"")
    for folder in (file, file / "below"):
        said = sentence(AGGREGATOR, *base, "--state", folder)
        assert said.startswith(f"{folder} cannot be written (")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(slice_path: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    base = ("--slice", slice_path, "--fleet", "orchard", "--state", tmp_path / "state")
    assert sentence(AGGREGATOR, *base).endswith("cannot be written (Permission denied).")


def test_an_embedded_broker_without_a_port(
    mosquitto: Mosquitto, slice_path: Path, tmp_path: Path
) -> None:
    base = ("--slice", slice_path, "--fleet", "orchard", "--state", tmp_path / "state")
    said = sentence(AGGREGATOR, *base, "--embedded", "--broker", mosquitto.address)
    assert said.startswith(f"the broker cannot listen at 127.0.0.1 port {mosquitto.port}: ")


# --- a device -------------------------------------------------------------------------------------


BAD_DEVICES = {
    "id": (["--id", "a/b"], "a device cannot be called 'a/b'"),
    "its master's id": (["--id", "aggregator"], "that is the aggregator's own name"),
    "fleet": (["--fleet", "a/b"], "a fleet cannot be called 'a/b'"),
    "broker": (["--broker", f"me:{PASSWORD}@host"], "has no mqtt:// or mqtts:// in front"),
    "share": (["--share", "0.5:0.2"], "0.5:0.2 must run upwards between 0 and 1"),
    "empty share": (["--share", "0:0.000001"], "is empty"),
    "other images": (["--task", "cifar10"], "cifar10 has examples of uint8[32, 32, 3]"),
    "other learning": (["--task", "atari"], "needs a bundle that learns by double Q-learning"),
    "no data": (["--task", "npz"], "the task npz needs data"),
    "no bundle": (["--bundle", "nowhere"], "no bundle at nowhere; `toolkit export` writes one"),
    "parts": (["--part-bytes", "100"], "--part-bytes must be at least 4096"),
}
BAD_FORMS = {
    "share without end": (["--share", "0.5"], "argument --share: '0.5' is not A:B, as 0:0.2 is"),
    "share of nothing": (["--share", "half"], "argument --share: 'half' is not A:B, as 0:0.2 is"),
    "steps": (["--steps", "0"], "argument --steps: must be at least 1"),
    "resend": (["--resend-seconds", "-1"], "argument --resend-seconds: must be above 0"),
    "checkpoint": (["--checkpoint-seconds", "nan"], "--checkpoint-seconds: must be above 0"),
    "no fleet": (["--fleet", ""], "say --fleet NAME and --id ID, or --isolated to train"),
    "task": (["--task", "chess"], "argument --task: invalid choice: 'chess'"),
}


@pytest.fixture
def device(bundles: dict[str, Bundle], tmp_path: Path) -> Arguments:
    """A command line that has nothing wrong in it, but that nobody listens."""
    broker = f"mqtt://127.0.0.1:{free_port()}"
    bundle = ("--bundle", bundles["weak"].folder, "--task", "digits")
    link = ("--fleet", "orchard", "--id", "pi-1", "--broker", broker)
    return (*bundle, *link, "--state", tmp_path / "pi-1")


@fleet_group
@pytest.mark.parametrize(("options", "said"), BAD_DEVICES.values(), ids=BAD_DEVICES)
def test_devices_that_cannot_work(options: list[str], said: str, device: Arguments) -> None:
    assert said in sentence(DEVICE, *device, *options)


@fleet_group
@pytest.mark.parametrize(("options", "said"), BAD_FORMS.values(), ids=BAD_FORMS)
def test_command_lines_of_the_wrong_form(options: list[str], said: str, device: Arguments) -> None:
    assert said in misuse(DEVICE, run_in_a_used_process(DEVICE, *device, *options))


def test_what_is_missing_is_named() -> None:
    required = "the following arguments are required: "
    assert misuse(AGGREGATOR, run(AGGREGATOR)) == f"{required}--slice, --fleet, --state"
    assert misuse(DEVICE, run(DEVICE)) == f"{required}--bundle, --task, --state"


@fleet_group
def test_a_bundle_that_is_damaged(
    bundles: dict[str, Bundle], device: Arguments, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(bundles["weak"].folder, damaged)
    model = damaged / "model.tflite"
    good = model.read_bytes()
    model.write_bytes(good[:-1])
    said = sentence(DEVICE, *device, "--bundle", damaged)
    assert said.startswith(f"{model} is damaged: it has {len(good) - 1} bytes, and ")
    model.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    said = sentence(DEVICE, *device, "--bundle", damaged)
    assert said == f"{model} is damaged: its digest is not the manifest's."


@fleet_group
def test_a_state_of_another_device(device: Arguments, tmp_path: Path) -> None:
    alone = run(DEVICE, *device, "--isolated", "--rounds", "1", "--steps", "1")
    assert alone.code == 0, alone.err
    said = sentence(DEVICE, *device, "--id", "pi-2")
    assert said.endswith("belongs to another device; give another --state.")


@fleet_group
def test_a_slice_that_the_fleet_does_not_know(
    programs: Programs, bundles: dict[str, Bundle], slice_path: Path
) -> None:
    aggregator = programs.aggregator("--slice", slice_path)
    device = programs.device("pi-1", bundles["weak"], "--resend-seconds", "0.5")
    assert device.exit_code() == 1
    last = device.log.read_text().splitlines()[-1]
    said = "error: the aggregator refused this device: the device shares tensor '(.*)', which"
    found = re.fullmatch(f"{said} the fleet does not know.", last)
    assert found is not None, last
    assert found[1] in {t.name for t in bundles["weak"].manifest.shared.tensors}
    assert "Traceback" not in device.log.read_text()
    refused = aggregator.wait_for("refused", device="pi-1")
    assert refused["reason"] == "wrong-fingerprint"


# --- passwords ------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that knows nobody, so that every password is wrong."""
    with Mosquitto(tmp_path / "locked", extra="allow_anonymous false") as running:
        yield running


@fleet_group
@pytest.mark.parametrize("where", ["in the address", "in a file"])
def test_a_wrong_password(
    where: str, locked: Mosquitto, device: Arguments, slice_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    if where == "in a file":
        link: Arguments = ("--broker", locked.address, "--user", "me", "--password-file", file)
    else:
        link = ("--broker", f"mqtt://me:{PASSWORD}@127.0.0.1:{locked.port}")
    refusal = f"{locked.address} does not let this user in: user, password or permission is wrong."
    base = ("--slice", slice_path, "--fleet", "orchard", "--state", tmp_path / "state")
    assert sentence(AGGREGATOR, *base, *link) == refusal
    assert sentence(DEVICE, *device, *link) == refusal


@fleet_group
def test_a_password_that_others_can_read(
    locked: Mosquitto, device: Arguments, slice_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o604)
    link: Arguments = ("--broker", locked.address, "--user", "me", "--password-file", file)
    exposed = (
        f"others can read or change {file}, which holds a secret: chmod 600 {file}, "
        "or give --allow-readable-keys."
    )
    base = ("--slice", slice_path, "--fleet", "orchard", "--state", tmp_path / "state")
    for program, own in ((AGGREGATOR, base), (DEVICE, device)):
        assert sentence(program, *own, *link) == exposed
        refusal = sentence(program, *own, *link, "--allow-readable-keys")
        assert refusal.startswith(f"{locked.address} does not let this user in")


def test_a_signing_key_that_others_can_read(slice_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "signing.pem"
    file.write_text("no key")
    file.chmod(0o640)
    base = ("--slice", slice_path, "--fleet", "orchard", "--state", tmp_path / "state")
    assert sentence(AGGREGATOR, *base, "--signing-key", file) == (
        f"others can read or change {file}, which holds a secret: chmod 600 {file}, "
        "or give --allow-readable-keys."
    )
    allowed = sentence(AGGREGATOR, *base, "--signing-key", file, "--allow-readable-keys")
    assert allowed == f"{file} does not hold an unencrypted private key."


# --- users who change their mind ------------------------------------------------------------------


def interrupt(program: Program) -> tuple[int, str]:
    """Ctrl-C: its exit code and the last thing it says."""
    program.send(signal.SIGINT)
    code: int = program.exit_code()
    said = program.log.read_text()
    assert "Traceback" not in said
    return code, said.splitlines()[-1]


def stopped(folder: Path) -> str:
    return f"stopped; {folder} keeps everything, the same command goes on"


@fleet_group
def test_ctrl_c_keeps_what_was_done(programs: Programs, bundles: dict[str, Bundle]) -> None:
    aggregator = programs.aggregator("--slice", bundles["weak"].slice)
    device = programs.device("pi-1", bundles["weak"], "--steps", "100000000")
    device.wait_for("evaluated", round=0)  # it trains now
    assert interrupt(device) == (130, stopped(programs.folder / "pi-1"))
    aggregator.wait_for("left", device="pi-1")  # it has said goodbye
    again = programs.device("pi-1", bundles["weak"], "--steps", "100000000")
    assert again.wait_for("resumed", round=0)["steps_done"] >= 1
    assert interrupt(again) == (130, stopped(programs.folder / "pi-1"))
    assert interrupt(aggregator) == (0, stopped(programs.folder / "aggregator"))


@fleet_group
@pytest.mark.parametrize(
    ("broker", "reason"),
    [
        (
            "mqtt://no-such-host.invalid",
            "the host of mqtt://no-such-host.invalid:1883 is not known",
        ),
        ("mqtt://127.0.0.1:1", "nothing listens at mqtt://127.0.0.1:1"),
    ],
    ids=["unknown host", "no broker"],
)
def test_a_broker_that_is_not_there_is_waited_for(
    broker: str, reason: str, programs: Programs, bundles: dict[str, Bundle]
) -> None:
    aggregator = programs.aggregator("--slice", bundles["weak"].slice, "--broker", broker)
    device = programs.device("pi-1", bundles["weak"], "--broker", broker)
    for program, code in ((aggregator, 0), (device, 130)):
        assert program.wait_for("disconnected")["reason"] == f"{reason}."
        assert program.running
        assert interrupt(program) == (code, stopped(programs.folder / program.name))


@fleet_group
def test_a_fleet_without_an_aggregator_is_said_once(
    programs: Programs, bundles: dict[str, Bundle]
) -> None:
    """As when the name of the fleet is mistyped."""
    options = ("--fleet", "orchid", "--resend-seconds", "0.1")
    device = programs.device("pi-1", bundles["weak"], *options)
    waiting = device.wait_for("waiting")
    assert waiting["reason"] == "the fleet has no aggregator at the moment."
    assert interrupt(device) == (130, stopped(programs.folder / "pi-1"))
    assert len(device.history("waiting")) == 1


def test_ctrl_c_ends_an_embedded_broker(programs: Programs, slice_path: Path) -> None:
    link = ("--embedded", "--broker", f"mqtt://127.0.0.1:{free_port()}")
    aggregator = programs.aggregator("--slice", slice_path, *link)
    aggregator.wait_for("connected")
    assert interrupt(aggregator) == (0, stopped(programs.folder / "aggregator"))


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [AGGREGATOR, DEVICE])
def test_help_teaches_with_an_example(module: str) -> None:
    ended = run(module, "--help")
    assert (ended.code, ended.err) == (0, "")
    example = re.search(rf"^    python -m {re.escape(module)}((?:.*\\\n)*.*)", ended.out, re.M)
    assert example is not None, ended.out
    arguments = importlib.import_module(f"{module}.__main__").arguments()
    parsed = arguments.parse_args(shlex.split(example[1].replace("\\\n", " ")))
    assert parsed.fleet == "greenhouse"
    for action in arguments._actions:
        assert action.help, f"{action.option_strings} is not explained"
