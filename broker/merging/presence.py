"""Which devices a fleet takes to be there, and so a synchronous round waits for; pure.

A device is present from its birth, or from any update that it sends, until it leaves or stays
silent: a round that had to wait for it until the deadline does not wait for it again before it
says something. So births without a device behind them cost one deadline, however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from broker.protocol.messages import Reason, Refused

MAX_DEVICES = 10_000


class Presence(Collection[str]):
    """At most `most` devices, in the order in which they joined."""

    def __init__(self, most: int = MAX_DEVICES) -> None:
        self._most = most
        self._devices: dict[str, None] = {}

    def __contains__(self, device: object) -> bool:
        return device in self._devices

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def join(self, device: str, known: Collection[str]) -> bool:
        """Notes that a device is there; returns whether it was not.

        Where there is no room, the device that joined first of those that have never sent an
        update (they are not `known`) makes room. Raises `Refused` if there is none of them.
        """
        if device in self._devices:
            return False
        if len(self._devices) >= self._most:
            stranger = next((name for name in self._devices if name not in known), None)
            if stranger is None:
                raise Refused(Reason.FULL, f"the fleet has its {self._most} devices.")
            del self._devices[stranger]
        self._devices[device] = None
        return True

    def leave(self, device: str) -> bool:
        """Notes that a device is gone; returns whether it was there."""
        was_there = device in self._devices
        self._devices.pop(device, None)
        return was_there

    def forget_silent(self, received: Collection[str]) -> tuple[str, ...]:
        """Removes and returns those that have sent nothing in a round that waited for them."""
        silent = tuple(name for name in self._devices if name not in received)
        for name in silent:
            del self._devices[name]
        return silent
