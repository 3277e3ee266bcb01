"""The operator's commands to the aggregator; there is one: stop.

An aggregator obeys what was said since it started: an older command, sent again by somebody who has
recorded it, does not stop the next one. With a key, only its holder can command.
"""

from __future__ import annotations

import time

from broker.errors import WireError
from broker.protocol.messages import Answer, Command, from_bytes
from broker.protocol.topics import AGGREGATOR, Topics

STOP = "stop"


class Orders:
    """What one aggregator is asked to do since `now`, in seconds of Unix time."""

    def __init__(self, topics: Topics, *, key: bytes | None, now: float | None = None) -> None:
        self._topic = topics.aggregator_command
        self._key = key
        self._since = int(1000 * (time.time() if now is None else now))

    def take(self, payload: bytes) -> Answer | None:
        """Returns the answer, which says whether to stop; None if this is no command to obey."""
        try:
            command = from_bytes(Command, payload, topic=self._topic, key=self._key)
        except WireError:
            return None
        if command.device != AGGREGATOR or command.number <= self._since:
            return None
        problem = "" if command.what == STOP else f"it cannot {command.what[:40]!r}"
        return Answer(
            device=AGGREGATOR,
            number=command.number,
            done=not problem,
            text=problem or f"{STOP}: done",
        )
