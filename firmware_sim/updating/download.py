"""A pack that arrives part by part, in a file: the memory of a device need not hold it.

Parts come in order, because the device asks for them. What a kill leaves of the file is taken up
again; nothing of it is believed before all of it has the digest of the offer.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from broker.errors import WireError
from broker.protocol.messages import Offer
from broker.protocol.parts import Part
from firmware_sim.bundle.reader import file_digest

_NAME = ".incoming-"


class Download:
    """The file of one offer, in a folder; those of other offers are removed."""

    def __init__(self, folder: Path, offer: Offer) -> None:
        self.offer = offer
        self.file = folder / f"{_NAME}{offer.digest[:16]}"
        clear(folder, keep=self.file)
        with self.file.open("ab") as file:
            whole = min(file.tell(), offer.bytes)
            if whole < offer.bytes:  # a part of which only a piece was written comes again
                whole -= whole % offer.part_bytes
            file.truncate(whole)
        self._have = whole

    @property
    def next_part(self) -> int:
        return -(-self._have // self.offer.part_bytes)

    @property
    def is_complete(self) -> bool:
        return self._have == self.offer.bytes

    def add(self, part: Part) -> bool:
        """Writes the part that is wanted next; returns False for any other one of the pack."""
        offer = self.offer
        if (part.digest, part.size) != (offer.digest, offer.bytes):
            raise WireError("a part belongs to another pack than the one on offer.")
        if part.index != self.next_part or self.is_complete:
            return False
        if len(part.piece) != min(offer.part_bytes, offer.bytes - self._have):
            raise WireError("a part of a pack has another size than the offer says.")
        with self.file.open("ab") as file:
            file.write(part.piece)
        self._have += len(part.piece)
        return True

    def is_what_was_offered(self) -> bool:
        return file_digest(self.file) == self.offer.digest


def clear(folder: Path, keep: Path | None = None) -> None:
    """Removes what has arrived of packs in a folder."""
    for file in folder.glob(f"{_NAME}*"):
        if file != keep:
            with contextlib.suppress(OSError):
                file.unlink()
