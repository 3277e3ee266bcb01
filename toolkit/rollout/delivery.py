"""One device that is offered a pack: which parts to send it, and how it ends; pure."""

from __future__ import annotations

from broker.protocol.messages import Rollout
from firmware_sim.updating.updates import (
    DONE,
    READY,
    REFUSED,
    ROLLED_BACK,
    TRYING,
    WANTS,
    WINDOW,
)

FIRST_REPEAT = 10.0  # seconds without an answer after which parts are sent again; then it doubles
STAGES = (WANTS, READY, TRYING, DONE, REFUSED, ROLLED_BACK)
ENDS = (DONE, REFUSED, ROLLED_BACK)


class Delivery:
    """Follows what one device says; `silent_after` is how long it may say nothing, in seconds."""

    def __init__(self, device: str, parts: int, *, now: float, silent_after: float) -> None:
        self.device = device
        self.stage = ""
        self.text = ""
        self.part = 0
        self._parts = parts
        self._heard = self._sent = now
        self._repeat = FIRST_REPEAT
        self._silent_after = silent_after

    @property
    def is_over(self) -> bool:
        return self.stage in ENDS

    @property
    def is_healthy(self) -> bool:
        return self.stage == DONE

    def heard(self, said: Rollout, now: float) -> bool:
        """Takes in what the device says; returns whether its stage has changed."""
        if said.stage not in STAGES or self.is_over:
            return False
        changed = said.stage != self.stage
        self.stage, self.text = said.stage, said.text
        self.part = min(max(said.part, 0), self._parts)
        self._heard, self._repeat = now, FIRST_REPEAT
        self._sent = -FIRST_REPEAT if said.stage == WANTS else now  # what it wants is due at once
        return changed

    def due(self, now: float) -> range:
        """Returns the numbers of the parts that are to be sent now."""
        if self.stage != WANTS or (self._sent >= 0 and now - self._sent < self._repeat):
            return range(0)
        if self._sent >= 0:
            self._repeat *= 2
        self._sent = now
        end = (self.part // WINDOW + 1) * WINDOW
        return range(self.part, min(end, self._parts))

    def give_up_if_silent(self, now: float) -> bool:
        """Ends the delivery if the device has said nothing for too long; returns whether it has."""
        if self.is_over or now - self._heard < self._silent_after:
            return False
        self.stage = REFUSED
        self.text = f"it has said nothing for {self._silent_after:.0f} s"
        return True
