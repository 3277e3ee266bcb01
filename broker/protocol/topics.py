"""Every topic of a fleet; topic strings exist here and nowhere else.

A message too large for one packet is sent in parts, part i on `<topic>/<i>` (see `channel.py`),
so readers of a topic subscribe to `<topic>` and to `<topic>/+`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.errors import NameRefused

ROOT = "stemshare/v1"
AGGREGATOR = "aggregator"  # also its user name, so no device may be called so
OBSERVER, OPERATOR = "observer", "operator"  # users who may look, and command
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(what: str, name: str) -> str:
    """Returns the name; raises `NameRefused` if it cannot be part of a topic and of a file name."""
    if not _NAME.fullmatch(name):
        raise NameRefused(
            f"a {what} cannot be called {name[:80]!r}: a name starts with a letter or digit and "
            "has at most 63 letters, digits, dots, underscores and hyphens."
        )
    if name in (AGGREGATOR, OBSERVER, OPERATOR):
        raise NameRefused(f"a {what} cannot be called {name!r}: that is the {name}'s own name.")
    return name


@dataclass(frozen=True)
class Topics:
    """The topics of one fleet; the word in brackets is who publishes there."""

    fleet: str

    def __post_init__(self) -> None:
        check_name("fleet", self.fleet)

    @property
    def root(self) -> str:
        return f"{ROOT}/{self.fleet}"

    @property
    def aggregator_state(self) -> str:
        """Retained, with a will: who coordinates, and how (aggregator)."""
        return f"{self.root}/aggregator/state"

    @property
    def aggregator_metrics(self) -> str:
        """Retained counters (aggregator)."""
        return f"{self.root}/aggregator/metrics"

    @property
    def report(self) -> str:
        """Retained: what has become of each device and round (aggregator)."""
        return f"{self.root}/aggregator/report"

    @property
    def aggregator_command(self) -> str:
        """What the aggregator is to do (operator)."""
        return f"{self.root}/aggregator/command"

    @property
    def aggregator_answer(self) -> str:
        """What it says to a command (aggregator)."""
        return f"{self.root}/aggregator/answer"

    @property
    def shared(self) -> str:
        """Retained θ_shared (aggregator)."""
        return f"{self.root}/shared"

    def state(self, device: str) -> str:
        """Retained birth, with a will (device)."""
        return f"{self.root}/device/{device}/state"

    def update(self, device: str) -> str:
        """What the device learnt (device)."""
        return f"{self.root}/device/{device}/update"

    def metrics(self, device: str) -> str:
        """Retained numbers about the device's training (device)."""
        return f"{self.root}/device/{device}/metrics"

    def verdict(self, device: str) -> str:
        """Whether a birth or an update was accepted, or why not (aggregator)."""
        return f"{self.root}/device/{device}/verdict"

    def command(self, device: str) -> str:
        """Retained until it is obeyed: what the device is to do (operator)."""
        return f"{self.root}/device/{device}/command"

    def answer(self, device: str) -> str:
        """What the device says to a command (device)."""
        return f"{self.root}/device/{device}/answer"

    def offer(self, device: str) -> str:
        """Retained while a rollout is under way: the pack that the device is to take (operator)."""
        return f"{self.root}/device/{device}/offer"

    def pack(self, device: str) -> str:
        """The parts of that pack, as the device asks for them (operator)."""
        return f"{self.root}/device/{device}/pack"

    def rollout(self, device: str) -> str:
        """Retained: how far the device is with the offer (device)."""
        return f"{self.root}/device/{device}/rollout"

    @property
    def home_available(self) -> str:
        """Retained, with a will: whether Home Assistant is told about the fleet (operator)."""
        return f"{self.root}/home/available"

    def home_state(self, device: str) -> str:
        """Retained JSON about a device, for Home Assistant (operator)."""
        return f"{self.root}/home/{device}/state"

    def home_switch(self, device: str) -> str:
        """ON or OFF: whether the device is to pause (Home Assistant)."""
        return f"{self.root}/home/{device}/pause"

    def reply(self, device: str) -> str:
        """θ_shared for this device alone, in asynchronous mode (aggregator)."""
        return f"{self.root}/device/{device}/shared"

    def of_aggregator(self) -> tuple[str, ...]:
        """Returns what the aggregator subscribes to; its own state, in case others replace it."""
        own = self.aggregator_state, self.aggregator_command
        return *own, self.state("+"), *_whole_or_in_parts(self.update("+"))

    def of_device(self, device: str) -> tuple[str, ...]:
        """Returns what a device subscribes to."""
        return (
            self.aggregator_state,
            *_whole_or_in_parts(self.shared),
            *_whole_or_in_parts(self.reply(device)),
            self.verdict(device),
            self.command(device),
        )

    def of_updating_device(self, device: str) -> tuple[str, ...]:
        """Returns what a device subscribes to beside that, if it can take packs."""
        return self.offer(device), self.pack(device)

    def of_observer(self) -> tuple[str, ...]:
        """Returns what an observer subscribes to: no weights, no updates."""
        return (
            self.aggregator_state,
            self.aggregator_metrics,
            self.report,
            self.state("+"),
            self.metrics("+"),
            self.rollout("+"),
        )

    def of_operator(self) -> tuple[str, ...]:
        """Returns what an operator subscribes to, beside what an observer does."""
        return self.answer("+"), self.state("+"), self.rollout("+"), self.aggregator_answer

    def client_id(self, member: str) -> str:
        """Returns the client id of a member; it is unique, because names have no colon."""
        return f"{self.fleet}:{member}"

    def sender(self, topic: str) -> tuple[str, str] | None:
        """Returns (device, "state", "update", "metrics" or "rollout") of its own topic, or None."""
        match topic.removeprefix(self.root).split("/"):
            case ["", "device", device, ("state" | "update" | "metrics" | "rollout") as what]:
                return device, what
        return None


def _whole_or_in_parts(topic: str) -> tuple[str, str]:
    return topic, f"{topic}/+"
