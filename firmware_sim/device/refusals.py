"""When a refusal is final: it was repeated after the device had asked again.

A single refusal may be forged, or of a moment that is over. The aggregator itself gives the same
answer to the same question, so a device asks again, and an acceptance makes it start anew.
"""

from __future__ import annotations

from broker.protocol.messages import Reason

MOST = 3  # refusals, each after asking
# The update came at the wrong time; the device continues from the newest θ_shared. Any other
# refusal is caused by this device and would be repeated.
GO_ON = {
    Reason.EARLY,
    Reason.LATE,
    Reason.FOREIGN,
    Reason.REPLAYED,
    Reason.SECOND,
    Reason.FINISHED,
}


class Refusals:
    """Refusals of one question, a birth or an update."""

    def __init__(self) -> None:
        self._count = 0
        self._asked = True

    @property
    def pending(self) -> bool:
        """Whether there was a refusal that is not final yet."""
        return self._count > 0

    def asked(self) -> None:
        """The device has put the question again."""
        self._asked = True

    def accepted(self) -> None:
        self._count = 0

    def refused(self) -> bool:
        """Returns whether the device should end; further refusals of one question do not count."""
        self._count += self._asked
        self._asked = False
        return self._count >= MOST
