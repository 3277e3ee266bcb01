"""The state of the fleet, as a device knows it from received messages; no I/O."""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import WireError
from broker.protocol.messages import AggregatorState, Shared, Verdict, from_bytes
from broker.protocol.topics import Topics

_RUNS = 2  # θ_shared is kept for the aggregator's run and for one that may follow it


class FleetView:
    """The newest message of each kind; messages may arrive twice, late and in any order."""

    def __init__(
        self,
        device: str,
        topics: Topics,
        *,
        limit: int,
        fingerprint: str,
        fits: Callable[[Shared], bool] = lambda shared: True,
    ) -> None:
        """A θ_shared that does not `fits` is no message: the one before it stays the newest."""
        self._device = device
        self._fits = fits
        self._topics = topics
        self._limit = limit
        self._fingerprint = fingerprint
        self._shared: dict[str, Shared] = {}  # by run
        self.aggregator: AggregatorState | None = None
        self.join: Verdict | None = None
        self.verdict: Verdict | None = None  # the last one about an update

    @property
    def shared(self) -> Shared | None:
        """The newest θ_shared of the aggregator's run."""
        return None if self.aggregator is None else self._shared.get(self.aggregator.run)

    @property
    def lacks_shared(self) -> bool:
        """Whether the aggregator has a θ_shared that has not come."""
        if self.aggregator is None or self.aggregator.status == "offline":
            return False
        return self.shared is None or self.shared.round < self.aggregator.round

    @property
    def joined(self) -> bool:
        """Whether the aggregator of this run has accepted this device."""
        mine = self.aggregator and self.join and self.join.run == self.aggregator.run
        return bool(mine and self.join and self.join.accepted)

    def take(self, topic: str, payload: bytes) -> None:
        """Updates the view from a message; raises `WireError` if it is none."""
        topics, device = self._topics, self._device
        if topic == topics.aggregator_state:
            self.aggregator = from_bytes(AggregatorState, payload)
            self._shared = {r: s for r, s in self._shared.items() if r == self.aggregator.run}
        elif topic in (topics.shared, topics.reply(device)):
            self._take_shared(from_bytes(Shared, payload, limit=self._limit))
        elif topic == topics.verdict(device):
            verdict = from_bytes(Verdict, payload)
            if verdict.about != "join":
                self.verdict = verdict
            elif verdict.nonce in ("", self._fingerprint):  # another: of an earlier bundle
                self.join = verdict

    def _take_shared(self, shared: Shared) -> None:
        """Keeps other runs too: θ_shared of a new run may arrive before the aggregator's state."""
        known = self._shared.get(shared.run)
        if known is not None and (shared.round, shared.last) <= (known.round, known.last):
            return
        if not self._fits(shared):
            raise WireError("the fleet's θ_shared does not fit this bundle, or is not finite.")
        self._shared[shared.run] = shared
        own = self.aggregator.run if self.aggregator else None
        others = [run for run in self._shared if run != own]
        if len(self._shared) > _RUNS:
            del self._shared[others[0]]
