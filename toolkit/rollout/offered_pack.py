"""A pack as it is offered: checked, and cut into the parts that devices ask for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from broker.protocol.messages import Offer
from broker.protocol.parts import ROOM, split
from firmware_sim.errors import PackError
from firmware_sim.packs.format import parse_index, read_signed
from toolkit.errors import RolloutError

PACKET_BYTES = 64 * 2**10  # of a part; small enough for every broker and for the memory of a device


@dataclass(frozen=True)
class OfferedPack:
    """What devices are offered, and the parts in the order of their numbers."""

    version: int
    digest: str
    size: int
    parts: tuple[bytes, ...]

    def offer(self, device: str, *, within: int) -> Offer:
        return Offer(
            device=device,
            version=self.version,
            digest=self.digest,
            bytes=self.size,
            part_bytes=PACKET_BYTES - ROOM,
            within=within,
        )


def read_pack(file: Path, fleet: str) -> OfferedPack:
    """Returns the pack; raises `RolloutError` if no device of the fleet would take it."""
    try:
        with file.open("rb") as opened:
            _, text = read_signed(opened, file, None)
            index = parse_index(text)
        content = file.read_bytes()
    except PackError as error:
        raise RolloutError(str(error)) from None
    except OSError as error:
        raise RolloutError(f"{file} cannot be read ({error.strerror}).") from None
    if not index.is_for_everyone:
        raise RolloutError(
            f"{file} holds the credentials of {index.device}, which do not travel over the broker: "
            "pack the bundle without --device."
        )
    if index.fleet != fleet:
        raise RolloutError(f"{file} is for fleet {index.fleet!r}, not for {fleet!r}.")
    return OfferedPack(
        version=index.version,
        digest=hashlib.sha256(content).hexdigest(),
        size=len(content),
        parts=tuple(split(content, PACKET_BYTES)),
    )
