"""The device's command line with a pack: what it brings, what it may say, what the user may."""

import io
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.log import Log
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.options import arguments
from firmware_sim.errors import PackError
from firmware_sim.packs.options import options_of
from toolkit.provisioning.fleet import provision
from toolkit.provisioning.pack import pack


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    provision("farm", ["pi-1"], tmp_path / "farm", host_names=["broker.local"])
    return tmp_path / "farm"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    with io.StringIO() as stream:
        yield stream


def packed(farm: Path, bundle: Bundle, version: int, *words: str) -> Path:
    return pack(
        bundle.folder, farm, "pi-1", fleet="farm", version=version, arguments=words
    ).file  # fmt: skip


def options(log: io.StringIO, *argv: str | Path) -> Namespace:
    args = options_of(arguments(), list(map(str, argv)), Log(log, as_json=True))
    if hasattr(args, "packs"):
        args.packs.close()
    return args


def misuse(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    with pytest.raises(SystemExit) as caught:
        options(io.StringIO(), *argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().rpartition("error: ")[2]


def test_a_pack_brings_everything_and_the_user_has_the_last_word(
    farm: Path, digits_bundle: Bundle, log: io.StringIO, tmp_path: Path
) -> None:
    file = packed(farm, digits_bundle, 4, "--task", "digits", "--steps", "7", "--share", "0:0.5")
    state = tmp_path / "state"
    args = options(log, "--pack", file, "--state", state, "--steps", "9")
    installed = state / "packs" / "4"
    model = digits_bundle.model_digest
    found = {name: getattr(args, name) for name in ("task", "steps", "share", "fleet", "id")}
    assert found == {
        "task": "digits",
        "steps": 9,
        "share": (0.0, 0.5),
        "fleet": "farm",
        "id": "pi-1",
    }
    assert (args.broker, args.user) == ("mqtts://broker.local:8883", "pi-1")
    assert args.bundle == installed / "bundle"
    files = (args.password_file, args.ca_file, args.certificate_file, args.key_file)
    names = ("password", "ca.pem", "certificate.pem", "key.pem")
    assert files == tuple(installed / "credentials" / name for name in names)
    assert args.aggregator_key == installed / "credentials" / "aggregator.pub"
    key = (farm / "aggregator.pub").read_bytes()
    assert args.aggregator_key.read_bytes() == key
    assert args.state == state / f"model-{model[:16]}"
    (event,) = map(json.loads, log.getvalue().splitlines())
    assert (event["event"], event["version"]) == ("pack", 4)


def test_a_pack_without_the_aggregators_key_is_installed_too(
    farm: Path, digits_bundle: Bundle, log: io.StringIO, tmp_path: Path
) -> None:
    """Packs of earlier versions have none: such a device believes what it gets."""
    (farm / "aggregator.pub").unlink()
    file = packed(farm, digits_bundle, 4, "--task", "digits")
    args = options(log, "--pack", file, "--state", tmp_path / "state")
    assert (args.id, args.aggregator_key) == ("pi-1", None)


def test_a_refused_pack_leaves_the_installed_one(
    farm: Path, digits_bundle: Bundle, log: io.StringIO, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    file = packed(farm, digits_bundle, 4, "--task", "digits")
    with pytest.raises(PackError, match="cannot be read or written"):
        options(log, "--pack", tmp_path / "none.pack", "--state", state)
    options(log, "--pack", file, "--state", state)
    args = options(log, "--pack", tmp_path / "none.pack", "--state", state)
    assert (args.id, args.task) == ("pi-1", "digits")
    _, refused, pack_event = map(json.loads, log.getvalue().splitlines())
    assert (refused["event"], refused["stays"]) == ("pack_refused", 4)
    assert "none.pack cannot be read or written (No such file" in refused["text"]
    assert pack_event["version"] == 4


def test_a_pack_that_this_version_does_not_understand_is_not_installed(
    farm: Path,
    digits_bundle: Bundle,
    log: io.StringIO,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = tmp_path / "state"
    options(log, "--pack", packed(farm, digits_bundle, 4, "--task", "digits"), "--state", state)
    monkeypatch.setattr(
        "toolkit.provisioning.pack.check_arguments", lambda *_: None
    )  # a newer toolkit
    newer = packed(farm, digits_bundle, 5, "--task", "digits", "--quantum", "2")
    args = options(log, "--pack", newer, "--state", state)
    assert args.bundle == state / "packs" / "4" / "bundle"
    refused = json.loads(log.getvalue().splitlines()[-2])
    assert refused["text"].startswith("the arguments in the pack are not understood: ")
    assert "--quantum" in refused["text"]


def test_a_pack_that_others_can_read_is_refused_unless_it_is_allowed(
    farm: Path, digits_bundle: Bundle, log: io.StringIO, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    file = packed(farm, digits_bundle, 4, "--task", "digits")
    file.chmod(0o644)
    refusal = (
        f"others can read or change {file}, which holds a secret: chmod 600 {file}, "
        "or give --allow-readable-keys."
    )
    with pytest.raises(PackError) as caught:
        options(log, "--pack", file, "--state", state)
    assert str(caught.value) == refusal
    args = options(log, "--pack", file, "--state", state, "--allow-readable-keys")
    assert (args.id, args.allow_readable_keys) == ("pi-1", True)
    args = options(log, "--pack", file, "--state", state)  # the installed one stays
    assert (args.id, args.allow_readable_keys) == ("pi-1", False)
    refused = json.loads(log.getvalue().splitlines()[-2])
    assert (refused["event"], refused["text"]) == ("pack_refused", refusal)


def test_a_pack_cannot_allow_readable_keys(farm: Path, digits_bundle: Bundle) -> None:
    with pytest.raises(PackError, match=r"^the arguments in a pack cannot say --allow-readable-k"):
        packed(farm, digits_bundle, 4, "--task", "digits", "--allow-readable-keys")


def test_what_a_pack_brings_cannot_be_given(
    farm: Path, digits_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = packed(farm, digits_bundle, 4)
    own = ("--pack", file, "--state", tmp_path / "state")
    for option, value in (("--bundle", "x"), ("--id", "a"), ("--broker", "mqtt://h:1")):
        assert misuse(capsys, *own, option, value) == f"--pack brings {option}: do not give both"
    required = "the following arguments are required: "
    assert misuse(capsys, "--pack", file) == f"{required}--state"
    with pytest.raises(PackError, match=r"not understood: --task is missing\.$"):
        options(io.StringIO(), *own)
    options(io.StringIO(), *own, "--task", "digits")
    assert misuse(capsys, *own) == f"{required}--task", "neither pack nor user says it"
    given = ("--bundle", "x", "--task", "digits", "--state", "s")
    assert misuse(capsys, *given, "--trust", "key") == "--trust needs --pack"
    assert misuse(capsys) == f"{required}--bundle, --task, --state"
