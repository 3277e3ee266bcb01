"""`toolkit pack`: what it writes, what it says, and what it refuses."""

import re
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.bundle.reader import Bundle, open_bundle
from firmware_sim.packs.format import read_key
from firmware_sim.packs.installed import Packs
from toolkit.provisioning.fleet import provision

Toolkit = Callable[..., Any]


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    provision("farm", ["pi-1"], tmp_path / "farm", host_names=["broker.local"], port=8884)
    return tmp_path / "farm"


def test_a_pack_holds_the_bundle_and_the_devices_credentials(
    toolkit: Toolkit, digits_bundle: Bundle, farm: Path, tmp_path: Path
) -> None:
    options = ("pack", digits_bundle.folder, "--fleet", "farm", "--provisioned", farm)
    ran = toolkit(*options, "--device", "pi-1", "--version", "3", "--", "--task", "digits")
    assert (ran.code, ran.err) == (0, "")
    file = farm / "packs" / "pi-1.pack"
    assert ran.out.startswith(f"{file}: version 3 for pi-1 of farm, ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    own = farm / "devices" / "pi-1"
    password = (own / "password").read_text(encoding="utf-8")
    assert password.strip() not in ran.out

    with closing(Packs(tmp_path / "state", trusted=read_key(own / "trust.key"))) as packs:
        packs.install(file)
        installed = packs.current()
    assert installed is not None
    assert installed.index.broker == "mqtts://broker.local:8884"
    assert installed.index.arguments == ("--task", "digits")
    assert open_bundle(installed.bundle).manifest == digits_bundle.manifest
    for name in ("ca.pem", "certificate.pem", "key.pem", "password"):
        assert installed.credential(name).read_bytes() == (own / name).read_bytes()


@pytest.mark.parametrize("name", ["authority/pack.key", "devices/pi-1/key.pem"])
def test_keys_that_others_can_read_sign_and_fill_no_pack(
    toolkit: Toolkit, digits_bundle: Bundle, farm: Path, name: str
) -> None:
    (farm / name).chmod(0o640)
    options = ("pack", digits_bundle.folder, "--fleet", "farm", "--provisioned", farm)
    ran = toolkit(*options, "--device", "pi-1")
    assert ran.refusal == (
        f"others can read or change {farm / name}, which holds a secret: "
        f"chmod 600 {farm / name}, or give --allow-readable-keys."
    )
    assert not (farm / "packs").exists()
    allowed = toolkit(*options, "--device", "pi-1", "--allow-readable-keys")
    assert allowed.code == 0
    assert stat.S_IMODE((farm / "packs" / "pi-1.pack").stat().st_mode) == 0o600


def test_versions_grow_by_themselves_and_the_unit_is_for_the_bundle(
    toolkit: Toolkit, digits_bundle: Bundle, farm: Path, tmp_path: Path
) -> None:
    unit = farm / "devices" / "pi-1" / "stemshare-device.service"
    text = unit.read_text(encoding="utf-8")
    unit.write_text(text.replace("MemoryMax=128M", "MemoryMax=64M"), encoding="utf-8")
    options = ("--fleet", "farm", "--provisioned", farm, "--device", "pi-1")
    file = tmp_path / "elsewhere" / "x.pack"
    ran = toolkit("pack", digits_bundle.folder, *options, "--out", file)
    assert ran.out.splitlines()[1] == f"  {unit} now allows the bundle's 128 MiB"
    assert unit.read_text(encoding="utf-8") == text
    again = toolkit("pack", digits_bundle.folder, *options, "--out", file)
    assert len(again.out.splitlines()) == 1
    versions = [int(re.findall(r"version (\d+)", said)[0]) for said in (ran.out, again.out)]
    assert 1_700_000_000 < versions[0] <= versions[1]


def test_what_cannot_be_packed_is_one_sentence(
    toolkit: Toolkit, digits_bundle: Bundle, farm: Path, tmp_path: Path
) -> None:
    def refusal(
        *options: str | Path, bundle: Path = digits_bundle.folder, fleet: str = "farm"
    ) -> Any:
        return toolkit("pack", bundle, "--provisioned", farm, "--fleet", fleet, *options).refusal

    assert refusal("--device", "pi-2") == "fleet 'farm' has no device 'pi-2'."
    assert refusal("--device", "aggregator").startswith("packs are for devices; ")
    assert refusal("--device", "pi-1", fleet="other").endswith(
        "belongs to fleet 'farm', not to 'other'."
    )
    assert refusal("--device", "pi-1", "--version", "0").startswith("a version is a number from 1 ")
    for arguments, said in (
        (("--task", "chess"), "the arguments in the pack are not understood: argument --task: "),
        (("--state", "/tmp"), "the arguments in a pack cannot say --state."),
        (("--sta", "/tmp"), "the arguments in a pack cannot say --state."),
        (("--broker", "mqtt://x:1"), "the arguments in a pack cannot say --broker."),
        (("--help",), "the arguments in the pack are not understood: "),
    ):
        assert refusal("--device", "pi-1", "--", *arguments).startswith(said)
    assert not (farm / "packs").exists()
    (farm / "authority" / "pack.key").unlink()
    assert refusal("--device", "pi-1").endswith("only this key can sign packs for the fleet.")
    (farm / "devices" / "pi-1" / "key.pem").unlink()
    assert "`toolkit provision --rotate` makes new ones." in refusal("--device", "pi-1")


def test_a_fleet_keeps_its_signing_key(farm: Path) -> None:
    private = farm / "authority" / "pack.key"
    before = private.read_bytes()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    provision("farm", ["pi-2"], farm)
    assert private.read_bytes() == before
    trusted = (farm / "devices" / "pi-2" / "trust.key").read_bytes()
    assert trusted == (farm / "pack.pub").read_bytes()
    private.unlink()
    provision("farm", ["pi-3"], farm)
    assert not private.exists(), "devices trust the lost one; there is no second"
