"""An observer: reads a fleet's topics in a thread of its own, and writes nothing to the broker."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from broker.protocol.messages import SMALL
from broker.protocol.topics import Topics
from broker.transport.channel import Channel, Message
from broker.transport.mqtt import MqttTransport
from broker.transport.transport import Connected, Disconnected
from profiles.text import printable
from toolkit.errors import ObserverError
from toolkit.observing.curves import Curve
from toolkit.observing.history import History
from toolkit.observing.link import Link
from toolkit.observing.received import received
from toolkit.observing.status import DeviceStatus, FleetStatus, RoundStatus

COMMIT_SECONDS = 1.0
MOST_ROUNDS = 200  # merges that are kept at hand
QUIET_SECONDS = 0.4  # without a message after which what is retained has come


class Observer:
    """Keeps the newest status of a fleet, and its curves; every attribute may be read at any time.

    `status` is replaced as a whole and never changed.
    """

    def __init__(
        self, topics: Topics, channel: Channel, history: History, *, clock: Callable[[], float]
    ) -> None:
        self.status = FleetStatus(fleet=topics.fleet)
        self.linked = False
        self.problem = ""  # why there is no link
        self.changes = 0  # messages so far
        self.curves: dict[tuple[str, str], Curve] = {}  # by device and measure
        self.rounds: dict[int, RoundStatus] = {}  # by number, in order
        self.history = history
        self._known_changes = history.last_changes()
        self._channel = channel
        self._clock = clock
        self._committed = 0.0

    def look(self, timeout: float) -> bool:
        """Handles one event; returns False if there was none within `timeout` seconds."""
        event = self._channel.receive(timeout)
        match event:
            case Connected():
                self.linked, self.problem = True, ""
            case Disconnected(reason, final):
                self.linked, self.problem = False, reason
                if final:
                    raise ObserverError(reason)
            case Message(topic, payload, retained):
                self._take(topic, payload, retained)
        if (now := self._clock()) - self._committed > COMMIT_SECONDS:
            self._committed = now
            self.history.commit()
        return event is not None

    def settle(self, patience: float) -> None:
        """Returns when what is retained has come; raises `ObserverError` if there is no link."""
        end = self._clock() + patience
        while not self.linked and self._clock() < end:
            self.look(0.1)
        if not self.linked:
            raise ObserverError(f"the fleet cannot be seen: {self.problem or 'no answer'}")
        heard = self._clock()
        while self._clock() - heard < QUIET_SECONDS and self._clock() < end:
            if self.look(0.1):
                heard = self._clock()

    def _take(self, topic: str, payload: bytes, retained: bool) -> None:
        before, now_ms = self.status, int(1000 * self._clock())
        after = received(before, topic, payload, now_ms=now_ms, retained=retained)
        self.changes += 1
        if after.run != before.run:
            self.curves = self.history.curves(after.run)
            self.rounds = {r.number: r for r in self.history.rounds(after.run, MOST_ROUNDS)}
            changed = list(after.devices.values())  # metrics may arrive before the run is known
        else:
            sender = Topics(after.fleet).sender(topic)
            name = sender[0] if sender else ""
            changed = [after.devices[name]] if name in after.devices else []
        for device in changed:
            self._keep_point(after.run, device, now_ms)
            after = self._keep_change(after, before.devices.get(device.name), device, now_ms)
        if after.rounds != before.rounds:
            self._keep_rounds(after)
        self.status = after

    def _keep_point(self, run: str, device: DeviceStatus, now_ms: int) -> None:
        if not run or device.score is None or device.trained_round < 0:
            return
        curve = self.curves.setdefault((device.name, device.measure), Curve())
        point = device.trained_round, device.score
        if (not curve.points or curve.points[-1] != point) and curve.add(*point):
            self.history.add_point(run, device, at_ms=now_ms)

    def _keep_change(
        self, fleet: FleetStatus, before: DeviceStatus | None, device: DeviceStatus, now_ms: int
    ) -> FleetStatus:
        """Keeps when a device came and went; what is retained does not say when."""
        now_is = device.online, bool(device.waiting)
        if before is not None and (before.online, bool(before.waiting)) == now_is:
            return fleet
        if device.since_ms:
            self.history.add_change(device, at_ms=now_ms)
            return fleet
        at_ms, was_online = self._known_changes.get(device.name, (0, device.online))
        if at_ms and was_online == device.online:
            known = replace(device, since_ms=at_ms)
            return replace(fleet, devices={**fleet.devices, device.name: known})
        return fleet

    def _keep_rounds(self, fleet: FleetStatus) -> None:
        new = [r for r in fleet.rounds if self.rounds.get(r.number) != r]
        self.history.add_rounds(fleet.run, new)
        merged = self.rounds | {r.number: r for r in new}
        self.rounds = dict(sorted(merged.items())[-MOST_ROUNDS:])

    def curve(self, device: DeviceStatus) -> Curve:
        """Returns the curve of the measure that stands for a device."""
        return self.curves.get((device.name, device.measure)) or Curve()


@contextlib.contextmanager
def observing(
    fleet: str, link: Link, history: History, *, clock: Callable[[], float] = time.time
) -> Iterator[Observer]:
    """Yields an observer, which has to be made to `look`."""
    topics = Topics(fleet)
    transport = MqttTransport(
        link.address,
        client_id=topics.client_id(f"observer-{secrets.token_hex(4)}"),
        subscriptions=topics.of_observer(),
        credentials=link.credentials,
        keep_session=False,
    )
    channel = Channel(transport, limit=SMALL, held_limit=SMALL)
    with contextlib.closing(history), contextlib.closing(channel):
        yield Observer(topics, channel, history, clock=clock)


@contextlib.contextmanager
def in_background(observer: Observer, failed: Callable[[str], None]) -> Iterator[None]:
    """Lets an observer look in a thread while the body runs; `failed` is told why it ended."""
    stopping = threading.Event()

    def work() -> None:
        try:
            while not stopping.is_set():
                observer.look(0.2)
        except ObserverError as error:
            failed(str(error))
        except Exception as error:  # a thread that ends in silence shows an old fleet for ever
            observer.linked = False
            failed(printable(f"the observer failed ({type(error).__name__}: {error}).", 300))

    thread = threading.Thread(target=work, name="observer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(5.0)


def by_profile(fleet: FleetStatus) -> Mapping[str, tuple[DeviceStatus, ...]]:
    """Returns the devices of each profile, in the order of their names."""
    found: dict[str, tuple[DeviceStatus, ...]] = {}
    for _, device in sorted(fleet.devices.items()):
        profile = device.about.get("profile", "")
        found[profile] = (*found.get(profile, ()), device)
    return found
