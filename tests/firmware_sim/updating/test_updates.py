"""What a device does with an offer, message by message, and with what is no offer."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.errors import Unsigned, WireError
from broker.log import Log
from broker.protocol.messages import Offer, to_bytes
from broker.protocol.parts import ROOM, split
from broker.protocol.topics import Topics
from firmware_sim.errors import CapReached, Restart
from firmware_sim.packs.installed import Packs
from firmware_sim.updating.updates import WINDOW, Updates
from tests.firmware_sim.packs.test_packs import contents, packed, packs_of
from tests.firmware_sim.packs.test_trials import offered
from toolkit.rollout.offered_pack import OfferedPack, read_pack

TOPICS = Topics("farm")
OFFER, PACK = TOPICS.offer("pi-1"), TOPICS.pack("pi-1")
PART = 4096 - ROOM


class Device:
    """The part of a device that takes offers; starts anew when it is made again."""

    def __init__(self, state: Path, *, on_trial: bool = False, **changes: Any) -> None:
        self.packs = Packs(state, on_trial=on_trial)
        installed = self.packs.current()
        assert installed is not None
        self.log = io.StringIO()
        usual = {"key": None, "room": 10**6, "check": lambda index: None, "log": Log(self.log)}
        self.updates = Updates(
            "pi-1",
            installed.index.version,
            self.packs,
            TOPICS,
            **{**usual, "cap_reached": lambda: False, **changes},  # type: ignore[arg-type]
        )

    def take(self, topic: str, payload: bytes) -> tuple[str, int, str] | None:
        said = self.updates.take(topic, payload)
        return None if said is None else (said.stage, said.part, said.text)

    def close(self) -> None:
        self.packs.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with packs_of(tmp_path / "state") as packs:
        packs.install(packed(tmp_path))
    return tmp_path / "state"


def large(tmp_path: Path, version: int = 9) -> tuple[bytes, list[bytes], Offer]:
    """A pack in more parts than a window has."""
    files = {n: 200 * d for n, d in contents(5).items() if n.startswith("bundle/")}
    file = offered(tmp_path, version, files=files)
    found = read_pack(file, "farm")
    parts = list(split(file.read_bytes(), 4096))
    assert len(parts) > 2 * WINDOW
    return file.read_bytes(), parts, offer_of(found)


def offer_of(pack: OfferedPack, **changes: Any) -> Offer:
    fields = {**vars(pack.offer("pi-1", within=60)), "part_bytes": PART}
    return Offer(**{**fields, **changes})


def test_it_asks_for_parts_window_by_window_and_goes_on_after_a_kill(
    state: Path, tmp_path: Path
) -> None:
    content, parts, offer = large(tmp_path)
    device = Device(state)
    assert device.take(OFFER, to_bytes(offer)) == ("wants", 0, "")
    assert device.take(PACK, parts[3]) is None, "not this one yet"
    answers = [device.take(PACK, part) for part in parts[: WINDOW + 3]]
    assert answers == [None] * (WINDOW - 1) + [("wants", WINDOW, "")] + [None] * 3
    assert device.take(PACK, parts[0]) is None, "it has that one"
    device.close()

    (incoming,) = (state / "packs").glob(".incoming-*")
    with incoming.open("ab") as file:
        file.write(b"a piece of a part")
    device = Device(state)
    assert device.take(OFFER, to_bytes(offer)) == ("wants", WINDOW + 3, "")
    last = [device.take(PACK, part) for part in parts[WINDOW + 3 :]][-1]
    assert last == ("ready", len(parts), "")
    assert incoming.read_bytes() == content
    assert device.updates.is_ready
    assert device.updates.install().stage == "trying"
    assert not incoming.exists()
    device.close()

    tried = Device(state, on_trial=True)
    assert tried.take(OFFER, to_bytes(offer)) == ("trying", 0, "")
    with pytest.raises(Restart):
        tried.updates.finished_round()
    tried.close()
    kept = Device(state)
    assert kept.take(OFFER, to_bytes(offer)) == ("done", 0, "")
    kept.updates.finished_round()  # no trial: nothing happens
    kept.close()


def test_one_above_its_cap_does_not_pass(state: Path, tmp_path: Path) -> None:
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 9), within=60)
    device = Device(state, on_trial=True, cap_reached=lambda: True)
    with pytest.raises(CapReached):
        device.updates.finished_round()
    assert device.packs.trial is not None
    device.packs.roll_back("above its cap")
    device.close()
    device = Device(state)
    offer = offer_of(read_pack(offered(tmp_path, 9), "farm"))
    assert device.take(OFFER, to_bytes(offer)) == ("rolled-back", 0, "above its cap")
    device.close()


def test_what_it_refuses(state: Path, tmp_path: Path) -> None:
    device = Device(state, room=5000)
    _, _, offer = large(tmp_path)
    said = device.take(OFFER, to_bytes(offer))
    assert said == ("refused", 0, "there is room for 5000 bytes")
    small = offer_of(read_pack(offered(tmp_path, 6), "farm"))
    assert device.take(OFFER, to_bytes(small)) == ("refused", 0, "version 7 is newer")
    assert not list((state / "packs").glob(".incoming-*"))
    device.close()


def test_a_pack_that_is_not_the_offered_one_is_not_installed(state: Path, tmp_path: Path) -> None:
    file = offered(tmp_path, 9)
    found = read_pack(file, "farm")
    for offer, content, why in (
        (offer_of(found, version=10), file.read_bytes(), "the offer says another"),
        (offer_of(found), bytes(found.size), "is not the one that was offered"),
    ):
        device = Device(state)
        device.take(OFFER, to_bytes(offer))
        for part in split(content, 4096):
            fields = json.loads(part[8 : 8 + int.from_bytes(part[:8], "little")])
            told = fields["__metadata__"]["stemshare"].replace(_digest_in(part), offer.digest)
            assert len(told) == len(fields["__metadata__"]["stemshare"])
            device.take(PACK, part.replace(_digest_in(part).encode(), offer.digest.encode()))
        assert device.updates.is_ready
        said = device.updates.install()
        assert (said.stage, why in said.text) == ("refused", True), said
        assert not device.updates.is_ready
        assert device.packs.trial is None
        device.close()


def _digest_in(part: bytes) -> str:
    header = json.loads(part[8 : 8 + int.from_bytes(part[:8], "little")])
    digest: str = json.loads(header["__metadata__"]["stemshare"])["digest"]
    return digest


def test_what_is_no_offer_and_no_part_changes_nothing(state: Path, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    device = Device(state, key=key.public_key().public_bytes_raw())
    _, parts, offer = large(tmp_path)
    for forged in (
        to_bytes(offer),
        to_bytes(offer, topic=TOPICS.offer("pi-2"), signer=key),
        to_bytes(offer, topic=OFFER, signer=Ed25519PrivateKey.generate()),
    ):
        with pytest.raises(Unsigned):
            device.take(OFFER, forged)
    for change in (
        {"device": "pi-2"},
        {"bytes": 2**40},
        {"bytes": 0},
        {"part_bytes": 1},
        {"part_bytes": 2**30},
        {"digest": "../../etc/passwd"},
        {"version": 0},
        {"within": 10**9},
    ):
        impossible = to_bytes(Offer(**{**vars(offer), **change}), topic=OFFER, signer=key)
        with pytest.raises(WireError):
            device.take(OFFER, impossible)
    assert device.take(PACK, parts[0]) is None, "nothing was offered"
    assert device.take(OFFER, to_bytes(offer, topic=OFFER, signer=key)) == ("wants", 0, "")
    for wrong in (b"", b"part", next(split(b"another" * 2000, 4096)), parts[0][:-1]):
        with pytest.raises(WireError):
            device.take(PACK, wrong)
    assert device.take(OFFER, b"") is None, "withdrawn"
    assert device.take(PACK, parts[0]) is None
    assert not list((state / "packs").glob(".incoming-*"))
    device.close()
