"""Packs: what is installed is what was signed, the newest, and for this device; else nothing is."""

import hashlib
import io
import json
import random
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firmware_sim.device.check import check_state
from firmware_sim.errors import PackError
from firmware_sim.packs.format import INDEX_LIMIT, LIMITS, SIGNED_AS, key_text, read_key
from firmware_sim.packs.installed import Packs
from toolkit.provisioning.pack import archive

OWNER = Ed25519PrivateKey.from_private_bytes(bytes(32))
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
KEY = OWNER.public_key().public_bytes_raw()
Listing = Callable[[Path], dict[str, bytes]]


def contents(seed: int = 0) -> dict[str, bytes]:
    rng = random.Random(seed)
    return {name: rng.randbytes(rng.randrange(1, 700)) for name in LIMITS}


def index(files: dict[str, bytes], **changes: Any) -> dict[str, Any]:
    entries = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    usual = {"format": 1, "fleet": "farm", "device": "pi-1", "version": 7, "arguments": []}
    return {**usual, "broker": "mqtts://broker.local:8883", "files": entries, **changes}


def packed(
    folder: Path,
    *,
    seed: int = 0,
    key: Ed25519PrivateKey = OWNER,
    files: dict[str, bytes] | None = None,
    **changes: Any,
) -> Path:
    """A pack with small files, whose index may say anything and is signed all the same."""
    files = contents(seed) if files is None else files
    text = json.dumps(index(files, **changes)).encode()
    signed = {"key": key.public_key().public_bytes_raw(), "signature": key.sign(SIGNED_AS + text)}
    path = folder / "given.pack"
    path.write_bytes(archive({**signed, "index.json": text, **files}))
    return path


@contextmanager
def packs_of(state: Path, trusted: bytes | None = None) -> Iterator[Packs]:
    packs = Packs(state, trusted=trusted)
    try:
        yield packs
    finally:
        packs.close()


def refusal(state: Path, pack: Path, trusted: bytes | None = None) -> str:
    with packs_of(state, trusted) as packs, pytest.raises(PackError) as caught:
        packs.install(pack)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a device that runs version 7."""
    with packs_of(tmp_path / "state") as packs:
        packs.install(packed(tmp_path))
    return tmp_path / "state"


def test_what_was_packed_is_installed_for_its_owner_alone(state: Path) -> None:
    with packs_of(state) as packs:
        installed = packs.current()
    assert installed is not None
    assert (installed.index.fleet, installed.index.device, installed.index.version) == (
        "farm",
        "pi-1",
        7,
    )
    for name, data in contents().items():
        assert (installed.folder / name).read_bytes() == data
        assert stat.S_IMODE((installed.folder / name).stat().st_mode) == 0o600
    assert installed.credential("password").read_bytes() == contents()["credentials/password"]
    folders = [p for p in (state / "packs").rglob("*") if p.is_dir()]
    assert {stat.S_IMODE(p.stat().st_mode) for p in folders} == {0o700}
    assert read_key(state / "packs" / "trusted.key") == KEY


def test_a_pack_is_a_tar_file_that_everybody_can_list(tmp_path: Path) -> None:
    with tarfile.open(packed(tmp_path)) as tar:
        assert tar.getnames() == ["key", "signature", "index.json", *LIMITS]
        assert all(member.isreg() and member.mode == 0o600 for member in tar)


def test_one_changed_byte_is_enough(state: Path, tmp_path: Path, listing: Listing) -> None:
    good = packed(tmp_path, seed=1, version=8).read_bytes()
    before = listing(state)
    rng = random.Random(0)
    damaged = tmp_path / "damaged.pack"
    for at in sorted(rng.sample(range(len(good)), 250)):
        changed = bytearray(good)
        changed[at] ^= 1 << rng.randrange(8)
        damaged.write_bytes(changed)
        refusal(state, damaged)
    for length in (0, 1, 511, 512, 2048, len(good) - 1024, len(good) - 1):
        damaged.write_bytes(good[:length])
        refusal(state, damaged)
    damaged.write_bytes(good + b"\0")
    assert "does not have the" in refusal(state, damaged)
    assert listing(state) == before
    damaged.write_bytes(good)
    with packs_of(state) as packs:
        packs.install(damaged)
        assert packs.version == 8


def test_a_newer_one_takes_the_place_and_an_older_one_never(state: Path, tmp_path: Path) -> None:
    with packs_of(state) as packs:
        packs.install(packed(tmp_path, seed=1, version=9))
        assert packs.version == 9
    names = {path.name for path in (state / "packs").iterdir()}
    assert names == {"9", "lock", "trusted.key"}, "the old one is gone"
    said = refusal(state, packed(tmp_path, version=8))
    assert said.endswith("has version 8, and version 9 is installed; an older one is never taken.")
    with packs_of(state) as packs:
        installed = packs.current()
    assert installed is not None
    assert (installed.folder / "credentials/password").read_bytes() == contents(1)[
        "credentials/password"
    ]


def test_one_version_is_one_pack(state: Path, tmp_path: Path, listing: Listing) -> None:
    before = listing(state)
    with packs_of(state) as packs:
        packs.install(packed(tmp_path))  # the same again
    assert listing(state) == before
    said = refusal(state, packed(tmp_path, seed=1))
    assert said.endswith("is another pack with the installed one's version 7.")


def test_the_pack_of_another_device_is_not_for_this_one(state: Path, tmp_path: Path) -> None:
    said = refusal(state, packed(tmp_path, version=8, device="pi-2"))
    assert said.endswith("is for device 'pi-2' of fleet 'farm', and this is 'pi-1' of 'farm'.")
    assert "fleet 'other'" in refusal(state, packed(tmp_path, version=8, fleet="other"))


def test_the_first_key_is_the_only_one(state: Path, tmp_path: Path) -> None:
    foreign = packed(tmp_path, version=8, key=STRANGER)
    said = refusal(state, foreign)
    assert said.endswith("is signed with another key than the one that this device trusts.")
    # One who puts the trusted key beside a signature of his own has gained nothing.
    other = STRANGER.public_key().public_bytes_raw()
    foreign.write_bytes(foreign.read_bytes().replace(other, KEY))
    assert refusal(state, foreign).endswith("was changed after it was signed.")


def test_a_key_that_the_user_gives_counts(state: Path, tmp_path: Path) -> None:
    other = STRANGER.public_key().public_bytes_raw()
    assert "another key" in refusal(state, packed(tmp_path, version=8), trusted=other)
    assert "another key" in refusal(tmp_path / "new", packed(tmp_path), trusted=other)
    with packs_of(state, trusted=other) as packs:
        packs.install(packed(tmp_path, version=8, key=STRANGER))
    assert "another key" in refusal(state, packed(tmp_path, version=9)), "the new one is kept"


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32, "ab" * 33, "\xff"])
def test_what_is_no_key_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trust.key"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PackError, match="is not a public key"):
        read_key(path)
    path.write_text(key_text(KEY), encoding="ascii")
    assert read_key(path) == KEY


# --- what a signature does not make good ----------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../../escaped", "/etc/escaped", "bundle/../escaped", "extra", "bundle/extra"]
)
def test_no_file_is_put_anywhere_else(tmp_path: Path, name: str) -> None:
    files = contents()
    for instead in (True, False):
        given = dict(files) if not instead else {n: files[n] for n in list(files)[1:]}
        given[name] = b"escaped"
        said = refusal(tmp_path / "state", packed(tmp_path, files=given))
        assert said == "the pack holds other files than a pack has."
    assert not [p for p in tmp_path.parent.rglob("*escaped*") if p.is_file()]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A member that is a link, where the signed index says a file: the headers differ."""
    good = packed(tmp_path).read_bytes()
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(good)) as tar, tarfile.open(fileobj=out, mode="w") as new:
        for member in tar:
            data = tar.extractfile(member)
            if member.name == "bundle/model.tflite":
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
                data = None
            new.addfile(member, data)
    path = tmp_path / "linked.pack"
    path.write_bytes(out.getvalue()[: len(good)].ljust(len(good), b"\0"))
    assert refusal(tmp_path / "state", path).endswith("is damaged, or is not a pack.")


def test_sizes_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    for name, most in LIMITS.items():
        files = index(contents())["files"]
        files[name]["bytes"] = most + 1
        said = refusal(tmp_path / "state", signed_as(tmp_path, files))
        assert said == f"{name} in the pack is larger than {most} bytes."
        files[name]["bytes"] = most  # allowed, and yet not there
        assert "does not have the" in refusal(tmp_path / "state", signed_as(tmp_path, files))
    assert not list((tmp_path / "state" / "packs").glob(".new-*"))


def signed_as(folder: Path, files: dict[str, Any]) -> Path:
    """A pack whose index says this of its files."""
    text = json.dumps({**index(contents()), "files": files}).encode()
    signed = {"key": KEY, "signature": OWNER.sign(SIGNED_AS + text), "index.json": text}
    path = folder / "signed.pack"
    path.write_bytes(archive({**signed, **contents()}))
    return path


def test_an_index_too_large_is_not_read(tmp_path: Path) -> None:
    path = packed(tmp_path, arguments=["x" * INDEX_LIMIT])
    assert refusal(tmp_path / "state", path).endswith("is damaged, or is not a pack.")


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"version": True},
        {"version": "7"},
        {"version": 2**60},
        {"fleet": "a/b"},
        {"device": "../pi"},
        {"device": "aggregator"},
        {"broker": "gopher://x"},
        {"arguments": "--task"},
        {"arguments": [1]},
        {"surprise": 1},
        {"fleet": None},
    ],
)
def test_an_index_must_state_what_it_must(tmp_path: Path, changes: dict[str, Any]) -> None:
    said = refusal(tmp_path / "state", packed(tmp_path, **changes))
    assert said == "the pack's index does not state what it must."


def test_another_format_is_named(tmp_path: Path) -> None:
    said = refusal(tmp_path / "state", packed(tmp_path, format=2))
    assert said == "the pack is of another format; this version reads 1."


# --- accidents ------------------------------------------------------------------------------------


def test_a_damaged_installation_is_noticed_and_mended_by_its_pack(
    state: Path, tmp_path: Path
) -> None:
    model = state / "packs" / "7" / "bundle" / "model.tflite"
    model.write_bytes(b"decayed")
    with packs_of(state) as packs:
        with pytest.raises(PackError, match="is damaged; install its pack again"):
            packs.current()
        packs.install(packed(tmp_path))
        assert packs.current() is not None
    assert model.read_bytes() == contents()["bundle/model.tflite"]
    (state / "packs" / "7" / "index.json").write_bytes(b"{")
    assert "an older one" in refusal(state, packed(tmp_path, version=6))
    with packs_of(state) as packs:
        packs.install(packed(tmp_path))
        assert packs.current() is not None


def test_what_a_kill_has_left_is_removed(state: Path, tmp_path: Path) -> None:
    left = state / "packs" / ".new-abc"
    left.mkdir()
    (left / "index.json").write_bytes(b"half")
    with packs_of(state) as packs:
        assert packs.version == 7
        packs.install(packed(tmp_path, version=8))
    assert not left.exists()


def test_a_refused_check_changes_nothing(state: Path, tmp_path: Path, listing: Listing) -> None:
    before = listing(state)

    def refuse(index: Any) -> None:
        raise PackError(f"no version {index.version} today.")

    with packs_of(state) as packs, pytest.raises(PackError, match="no version 8 today"):
        packs.install(packed(tmp_path, version=8), refuse)
    assert listing(state) == before


def test_a_device_that_runs_keeps_its_packs(state: Path) -> None:
    with packs_of(state), pytest.raises(PackError, match="another device is using"):
        Packs(state)


def test_the_check_of_a_state_folder_reads_the_pack_in_use(state: Path, listing: Listing) -> None:
    before = listing(state)
    folder = state / "packs" / "7"
    [found] = check_state(state)
    assert found.line == f"{folder}: whole; version 7 for device pi-1 of fleet farm"
    assert listing(state) == before, "nothing is touched"
    name = next(iter(LIMITS))
    (folder / name).write_bytes(b"decayed")
    [found] = check_state(state)
    assert found.line == f"{folder / name} is damaged; install its pack again."
