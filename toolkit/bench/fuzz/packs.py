"""Packs as a target: any file, and any index with a good signature."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.errors import WireError
from broker.log import Log
from broker.protocol.messages import Offer, to_bytes
from broker.protocol.parts import ROOM, SMALLEST, split
from broker.protocol.topics import Topics
from firmware_sim.errors import PackError
from firmware_sim.packs.format import END, INDEX, KEY, LIMITS, SIGNATURE, SIGNED_AS, header, padding
from firmware_sim.packs.installed import Packs
from firmware_sim.updating.updates import Updates
from toolkit.bench.fuzz.target import Parser, Target, check, check_sentence

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_TOPICS = Topics("farm")
_ROOM = 50_000  # bytes for a pack
_SIGNED = b"{"  # an input that begins so is the index of a pack, and is signed


def _open_pack(folder: Path) -> Parser:
    given, state = folder / "given.pack", folder / "state"

    def run(data: bytes) -> None:
        given.write_bytes(_pack(data) if data.startswith(_SIGNED) else data)
        given.chmod(0o600)
        packs = Packs(state)
        try:
            packs.install(given)
            installed = packs.current()
            check(installed is not None, "a pack was installed, and none is in use.")
        except PackError as error:
            check_sentence(error)
            check(not (state / "packs" / "1").exists(), "a pack was refused, and installed.")
        finally:
            packs.close()
            shutil.rmtree(state, ignore_errors=True)

    return Parser(run)


def _contents() -> dict[str, bytes]:
    return {name: name.encode() for name in LIMITS}


def _pack(index: bytes) -> bytes:
    signed = {KEY: _KEY.public_key().public_bytes_raw(), SIGNATURE: _KEY.sign(SIGNED_AS + index)}
    members = {**signed, INDEX: index, **_contents()}
    parts = (header(name, len(data)) + data + padding(len(data)) for name, data in members.items())
    return b"".join((*parts, END))


def _pack_seeds() -> list[bytes]:
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in _contents().items()
    }
    index: dict[str, Any] = {"format": 1, "fleet": "farm", "device": "pi-1", "version": 1}
    index |= {"arguments": ["--task", "digits"], "broker": "mqtts://b:8883", "files": listed}
    text = json.dumps(index).encode()
    return [text, _pack(text)]


def _open_offers(folder: Path) -> Parser:
    """A device that runs version 1; an input is taken as an offer, and as a part of a good one."""
    state, given = folder / "state", folder / "given.pack"
    given.write_bytes(_pack_seeds()[1])
    packs = Packs(state)
    packs.install(given)
    updates = Updates(
        "pi-1",
        1,
        packs,
        _TOPICS,
        key=None,
        room=_ROOM,
        check=lambda index: None,
        cap_reached=lambda: False,
        log=Log(io.StringIO(), as_json=True),
    )

    def run(data: bytes) -> None:
        for before, topic in ((b"", _TOPICS.offer("pi-1")), (_offer(), _TOPICS.pack("pi-1"))):
            if before:
                updates.take(_TOPICS.offer("pi-1"), before)
            try:
                updates.take(topic, data)
            except WireError as error:
                check_sentence(error)
            kept = sum(file.stat().st_size for file in packs.folder.glob(".incoming-*"))
            check(kept <= _ROOM, "more was kept than there is room for.")

    return Parser(run, packs.close)


def _offered() -> bytes:
    return _pack_seeds()[1]


def _offer() -> bytes:
    digest = hashlib.sha256(_offered()).hexdigest()
    return to_bytes(
        Offer(
            device="pi-1",
            version=2,
            digest=digest,
            bytes=len(_offered()),
            part_bytes=SMALLEST - ROOM,
            within=60,
        )
    )


TARGETS = (
    Target("pack", "packs, as they are and signed again", _pack_seeds, _open_pack),
    Target(
        "offer",
        "offers of packs and their parts, as a device takes them",
        lambda: [_offer(), *split(_offered(), SMALLEST)],
        _open_offers,
    ),
)
