"""Which devices a fleet takes to be there, and so a synchronous round waits for; pure.

A device is present from its birth, or from any update that it sends, until it leaves, says that it
does not train at the moment, or stays silent: a round that had to wait for it until the deadline
does not wait for it again before it says something. So births without a device behind them cost
one deadline, however many there are.
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
        self.receivers: set[str] = set()  # of them those that never send
        self._waiting: set[str] = set()

    def __contains__(self, device: object) -> bool:
        return device in self._devices

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    @property
    def senders(self) -> set[str]:
        """The devices of which updates may come."""
        return self._devices.keys() - self.receivers

    @property
    def waiting(self) -> int:
        """The number of devices that have said that they do not train at the moment."""
        return len(self._waiting)

    def join(self, device: str, known: Collection[str], *, receives: bool = False) -> bool:
        """Notes that a device is there; returns whether it was not.

        Where there is no room, the device that joined first of those that have never sent an
        update (they are not `known`) makes room. Raises `Refused` if there is none of them.
        """
        (self.receivers.add if receives else self.receivers.discard)(device)
        if device in self._devices:
            return False
        if len(self._devices) >= self._most:
            stranger = next((name for name in self._devices if name not in known), None)
            if stranger is None:
                raise Refused(Reason.FULL, f"the fleet has its {self._most} devices.")
            self.leave(stranger)
        self._devices[device] = None
        self._waiting.discard(device)
        return True

    def wait(self, device: str) -> bool:
        """Notes that a device does not train at the moment; returns whether that is news."""
        if device in self._waiting:
            return False
        self.leave(device)
        if len(self._waiting) < self._most:
            self._waiting.add(device)
        return True

    def leave(self, device: str) -> bool:
        """Notes that a device is gone; returns whether it was there."""
        was_there = device in self._devices or device in self._waiting
        self._devices.pop(device, None)
        self.receivers.discard(device)
        self._waiting.discard(device)
        return was_there

    def forget_silent(self, received: Collection[str]) -> tuple[str, ...]:
        """Removes and returns those that have sent nothing in a round that waited for them."""
        silent = tuple(
            name for name in self._devices if name not in received and name not in self.receivers
        )
        for name in silent:
            del self._devices[name]
        return silent
