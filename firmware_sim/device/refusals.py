"""When a refusal is final: it was repeated after the device had asked again.

A single refusal may be forged, or of a moment that is over. The aggregator itself gives the same
answer to the same question, so a device asks again, and an acceptance makes it start anew.
"""

from __future__ import annotations

MOST = 3  # refusals, each after asking


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
