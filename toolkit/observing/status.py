"""The status of a fleet at one moment, as an observer knows it; frozen.

Times are milliseconds of Unix time; 0 is "not known".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from broker.protocol.messages import AggregatorState

# The measure that stands for a device, the first of these that it publishes; where "lower" is set,
# less is better.
MEASURES = (
    "accuracy",
    "test_then_train_accuracy",
    "score",
    "rmse",
    "reconstruction_error",
    "mae",
    "loss",
    "train_loss",
)
LOWER_IS_BETTER = frozenset({"rmse", "reconstruction_error", "mae", "loss", "train_loss"})
FLOAT_BYTES = 4
LARGEST_NUMBER = 2**53  # that is counted to; a history could not keep 2**63


class Activity(StrEnum):
    """What a device is doing."""

    TRAINING = "training"
    WAITING = "waiting"  # for others: its part of the round is done, or nobody coordinates
    PAUSED = "paused"  # by its profile, for lack of examples, or by the operator
    OFFLINE = "offline"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What a device is doing, why, and since when."""

    activity: Activity
    why: str = ""
    since_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class DeviceStatus:
    """All that is known of one device."""

    name: str
    online: bool | None = None  # None: only the aggregator's report speaks of it
    since_ms: int = 0  # when it came, went, or began to pause, if that was seen
    seen_ms: int = 0  # when it said something
    waiting: str = ""  # why it does not train at the moment, as "cause: text"
    about: Mapping[str, str] = field(default_factory=dict)  # profile, branch, runtime
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes by tensor
    metrics: Mapping[str, float] = field(default_factory=dict)  # as the device publishes them
    round: int = -1  # of the last update that counted
    behind: int = 0  # merges between that update and the θ_shared that it started from
    accepted: int = 0
    late: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # by reason
    update_bytes: int = 0  # of the last update that counted
    samples: int = 0
    rollout: str = ""  # how far it is with the pack that was offered last

    @property
    def measure(self) -> str:
        """The name of the measure that stands for the device; "" if it has published none."""
        return next((name for name in MEASURES if name in self.metrics), "")

    @property
    def score(self) -> float | None:
        value = self.metrics.get(self.measure)
        return value if value is not None and math.isfinite(value) else None

    @property
    def trained_round(self) -> int:
        """The round that its metrics are about; -1 if they name none."""
        number = self.metrics.get("round", -1)
        return int(number) if 0 <= number <= LARGEST_NUMBER else -1

    @property
    def shared_bytes(self) -> Mapping[str, int]:
        """The bytes of each tensor that it shares, as float32."""
        return {n: FLOAT_BYTES * math.prod(shape) for n, shape in self.shares.items()}


@dataclass(frozen=True, kw_only=True)
class RoundStatus:
    """One merge."""

    number: int
    began_ms: int
    closed_ms: int
    devices: int  # whose updates were merged
    late: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return max(0, self.closed_ms - self.began_ms) / 1000


@dataclass(frozen=True, kw_only=True)
class FleetStatus:
    """All that is known of a fleet."""

    fleet: str
    aggregator: AggregatorState | None = None
    aggregator_seen_ms: int = 0
    round: int = 0
    began_ms: int = 0  # when the round that is open began
    deadline_ms: int = 0
    quorum: int = 0
    last_round: int = 0  # 0: it goes on for ever
    counters: Mapping[str, float] = field(default_factory=dict)  # of the aggregator
    refused: Mapping[str, int] = field(default_factory=dict)  # by reason
    devices: Mapping[str, DeviceStatus] = field(default_factory=dict)  # by name
    rounds: tuple[RoundStatus, ...] = ()  # the newest is last
    unreadable: int = 0  # messages that were none

    @property
    def run(self) -> str:
        return self.aggregator.run if self.aggregator else ""

    @property
    def aggregator_status(self) -> str:
        return self.aggregator.status if self.aggregator else "unknown"

    def doing(self, name: str) -> Doing:
        """Returns what a device is doing: training unless something says otherwise."""
        device = self.devices[name]
        since = device.since_ms
        if device.online is None:
            return Doing(activity=Activity.UNKNOWN, why="it has not been heard")
        if not device.online:
            return Doing(activity=Activity.OFFLINE, since_ms=since or device.seen_ms)
        if device.waiting:
            return Doing(activity=Activity.PAUSED, why=device.waiting, since_ms=since)
        if self.aggregator_status == "finished":
            return Doing(activity=Activity.WAITING, why="the fleet has finished")
        if self.aggregator_status != "online":
            return Doing(activity=Activity.WAITING, why="the fleet has no aggregator")
        sync = self.aggregator is not None and self.aggregator.mode == "sync"
        if sync and device.round == self.round:
            return Doing(activity=Activity.WAITING, why="its part of the round is done")
        return Doing(activity=Activity.TRAINING, since_ms=since)

    def count(self, activity: Activity) -> int:
        return sum(self.doing(name).activity is activity for name in self.devices)
