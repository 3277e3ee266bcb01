"""Which of several aggregators of one fleet is the newest; the older ones end.

Every start takes an epoch above the last one that its folder or the broker knows. Whoever sees a
newer one on the topic of the aggregator's state, (epoch, instance) being compared, is superseded.
Where states are not signed anybody can write there, so an unsigned one is believed only just
after the link was lost: that is how a broker throws out the older of two clients with one name.
"""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path

from broker.durable import write_file
from broker.errors import StoreError
from broker.protocol.messages import AggregatorState

FILE = "epoch"
MOST = 2**40  # a larger one is nobody's: a start a second for 30,000 years


class Standing(Enum):
    """What a state on the broker means for the aggregator that sees it."""

    OWN = auto()  # the broker has what was published
    OTHER = auto()  # something else stands there: publish again
    BEHIND = auto()  # a predecessor had a higher epoch: take a higher one, and publish again
    SUPERSEDED = auto()  # a newer aggregator has the fleet


class Epochs:
    """Judges the states that one aggregator sees; pure but for `raise_above`."""

    def __init__(self, folder: Path, instance: str) -> None:
        self.folder = folder
        self.instance = instance
        self.epoch = 0
        self._seen_own = False  # since the start: what was retained before has been seen then
        self._relinked = False  # the link was lost, and our own state not seen since
        self.raise_above(_read(folder / FILE))

    def raise_above(self, epoch: int) -> None:
        """Takes the next higher epoch, for good."""
        self.epoch = max(self.epoch, epoch) + 1
        try:
            write_file(self.folder / FILE, f"{self.epoch}\n".encode())
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be written ({error.strerror}).") from None

    def link_lost(self) -> None:
        self._relinked = self._seen_own

    def judge(self, seen: AggregatorState | None, *, signed: bool) -> Standing:
        """What stands on the broker; None if it is no state at all, or not signed by the fleet."""
        if seen is None or seen.epoch > MOST:
            return Standing.OTHER
        if (seen.epoch, seen.instance) == (self.epoch, self.instance):
            if seen.status == "offline":  # our own will, after the link was lost
                return Standing.OTHER
            self._seen_own, self._relinked = True, False
            return Standing.OWN
        if (seen.epoch, seen.instance) < (self.epoch, self.instance):
            return Standing.OTHER
        if not self._seen_own:
            return Standing.BEHIND
        if seen.status != "offline" and (signed or self._relinked):
            return Standing.SUPERSEDED
        return Standing.OTHER


def _read(path: Path) -> int:
    try:
        return min(MOST, max(0, int(path.read_text(encoding="ascii"))))
    except (FileNotFoundError, ValueError):  # a new folder; a damaged number is raised again
        return 0
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}).") from None
