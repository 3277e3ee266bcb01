"""What a device does with an offer: it fetches the pack, checks it, and has it tried.

    offer → wants part 0 … wants part n → ready → (between two rounds) trying → done
                                                                    └→ rolled-back

or `refused`, at any point before `trying`. Each stage is published, retained, so that an operator
who comes later knows it. The offer stays at the broker meanwhile: whatever kills the device, it is
given the offer again and goes on from what is on its disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from broker.errors import WireError
from broker.log import Log
from broker.protocol.messages import Offer, Rollout, from_bytes
from broker.protocol.parts import SMALLEST, read_part
from broker.protocol.topics import Topics
from firmware_sim.errors import CapReached, PackError, Restart
from firmware_sim.packs.format import HIGHEST_VERSION, Index
from firmware_sim.packs.installed import Packs
from firmware_sim.updating.download import Download, clear

WANTS, READY, TRYING, DONE = "wants", "ready", "trying", "done"
REFUSED, ROLLED_BACK = "refused", "rolled-back"
WINDOW = 8  # parts that the operator sends at a time
LARGEST_PART = 256 * 2**10  # bytes
LONGEST_TRIAL = 24 * 3600  # seconds
LARGEST_PACK = 2**31  # bytes


class NoUpdates:
    """Of a device that takes no offers: it was not started from a pack, or is in an application."""

    subscriptions: tuple[str, ...] = ()
    is_ready = False

    def take(self, topic: str, payload: bytes) -> Rollout | None:
        return None

    def begin_trial(self, tell: Callable[[Rollout], None]) -> None:
        """Nothing is ever tried."""

    def finished_round(self) -> None:
        """Nothing is on trial."""


NO_UPDATES = NoUpdates()


class Updates:
    """The packs of one device, as its operator offers them."""

    def __init__(
        self,
        device: str,
        version: int,
        packs: Packs,
        topics: Topics,
        *,
        key: bytes | None,
        room: int,
        check: Callable[[Index], None],
        cap_reached: Callable[[], bool],
        log: Log,
    ) -> None:
        """`version` is in use; `room` is the most bytes that a pack may have."""
        self._device = device
        self._version = version
        self._packs = packs
        self._topics = topics
        self._key = key
        self._room = room
        self._check = check
        self._cap_reached = cap_reached
        self._log = log
        self._download: Download | None = None

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return self._topics.of_updating_device(self._device)

    @property
    def is_ready(self) -> bool:
        """Whether a pack is here that waits for the end of the round."""
        return self._download is not None and self._download.is_complete

    def take(self, topic: str, payload: bytes) -> Rollout | None:
        """Returns what to publish after a message; raises `WireError` if it is malformed."""
        try:
            if topic == self._topics.offer(self._device):
                return self._take_offer(payload)
            if topic == self._topics.pack(self._device) and self._download is not None:
                return self._take_part(self._download, payload)
        except OSError as error:
            return self._refuse(f"the pack cannot be kept ({error.strerror})")
        return None

    def begin_trial(self, tell: Callable[[Rollout], None]) -> None:
        """Installs the pack that is ready, and raises `Restart`; returns if it is refused."""
        tell(self.install())
        if self.is_ready:
            raise Restart("a pack is tried: the device starts again.")

    def install(self) -> Rollout:
        """Puts the pack that is ready on trial, or refuses it."""
        assert self._download is not None
        offer = self._download.offer
        try:
            if not self._download.is_what_was_offered():
                raise PackError("the pack is not the one that was offered.")
            self._packs.install(self._download.file, self._check_offered, within=offer.within)
        except (PackError, OSError) as error:
            return self._refuse(str(error))
        clear(self._packs.folder)
        self._log.event("pack_trying", version=offer.version)
        return self._said(offer, TRYING)

    def finished_round(self) -> None:
        """Ends the trial of a pack: the device has finished a round with it, below its cap."""
        if not self._packs.on_trial:
            return
        if self._cap_reached():
            raise CapReached.keeping(self._packs.folder.parent)
        self._packs.confirm()
        self._log.event("pack_kept", version=self._version)
        raise Restart("the pack has passed its trial: the device starts again.")

    def _take_offer(self, payload: bytes) -> Rollout | None:
        if not payload:  # withdrawn
            self._download = None
            clear(self._packs.folder)
            return None
        topic = self._topics.offer(self._device)
        offer = from_bytes(Offer, payload, topic=topic, key=self._key)
        self._check_plausible(offer)
        if offer.version == self._version:
            return self._said(offer, TRYING if self._packs.on_trial else DONE)
        failed = self._packs.failed
        if offer.version == failed.version:
            return self._said(offer, ROLLED_BACK, failed.text)
        self._download = None
        if offer.version < max(self._version, failed.version):
            newest = max(self._version, failed.version)
            return self._said(offer, REFUSED, f"version {newest} is newer")
        if self._packs.on_trial:
            return None  # after this one
        if offer.bytes > self._room:
            return self._said(offer, REFUSED, f"there is room for {self._room} bytes")
        self._download = Download(self._packs.folder, offer)
        return self._progress(self._download)

    def _check_plausible(self, offer: Offer) -> None:
        if offer.device != self._device:
            raise WireError("an offer is for another device.")
        if not (
            1 <= offer.version <= HIGHEST_VERSION
            and re.fullmatch("[0-9a-f]{64}", offer.digest)
            and 1 <= offer.bytes <= LARGEST_PACK
            and SMALLEST // 2 <= offer.part_bytes <= LARGEST_PART
            and 1 <= offer.within <= LONGEST_TRIAL
        ):
            raise WireError("an offer says what cannot be.")

    def _take_part(self, download: Download, payload: bytes) -> Rollout | None:
        part = read_part(payload, LARGEST_PACK)
        if not download.add(part):
            return None
        if download.is_complete or download.next_part % WINDOW == 0:
            return self._progress(download)
        return None

    def _progress(self, download: Download) -> Rollout:
        stage = READY if download.is_complete else WANTS
        return self._said(download.offer, stage, part=download.next_part)

    def _check_offered(self, index: Index) -> None:
        assert self._download is not None
        if index.version != self._download.offer.version:
            raise PackError(f"the pack has version {index.version}, and the offer says another.")
        self._check(index)

    def _refuse(self, why: str) -> Rollout:
        assert self._download is not None
        offer, self._download = self._download.offer, None
        clear(self._packs.folder)
        self._log.event("pack_refused", text=why, stays=self._version)
        return self._said(offer, REFUSED, why)

    def _said(self, offer: Offer, stage: str, text: str = "", part: int = 0) -> Rollout:
        return Rollout(
            device=self._device, version=offer.version, stage=stage, part=part, text=text
        )
