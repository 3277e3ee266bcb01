"""Who may write and read which topics: one table, for access rules of every kind."""

from __future__ import annotations

from dataclasses import dataclass

from broker.protocol.topics import AGGREGATOR, OBSERVER, OPERATOR, Topics
from toolkit.home_assistant.discovery import discovery_topic


@dataclass(frozen=True)
class Rights:
    """Topic filters, with wildcards."""

    writes: tuple[str, ...]
    reads: tuple[str, ...]


def rights_of(user: str, topics: Topics) -> Rights:
    """Returns what a user of a fleet may do; whoever has no role is a device of that name."""
    match user:
        case "aggregator":
            return Rights(
                writes=(
                    f"{topics.root}/{AGGREGATOR}/#",
                    f"{topics.shared}/#",
                    topics.verdict("+"),
                    f"{topics.reply('+')}/#",
                ),
                reads=(*topics.of_aggregator(), topics.metrics("+")),
            )
        case "observer":
            return Rights(writes=(), reads=topics.of_observer())
        case "operator":
            # Beside commands and packs, it clears what is retained of a device that is removed.
            return Rights(
                writes=(
                    topics.aggregator_command,
                    topics.command("+"),
                    topics.offer("+"),
                    topics.pack("+"),
                    topics.state("+"),
                    topics.metrics("+"),
                    topics.rollout("+"),
                    topics.home_available,
                    topics.home_state("+"),
                    discovery_topic(topics.fleet, "+"),
                ),
                reads=tuple(
                    dict.fromkeys(
                        (*topics.of_observer(), *topics.of_operator(), topics.home_switch("+"))
                    )
                ),
            )
    return Rights(
        writes=(
            topics.state(user),
            f"{topics.update(user)}/#",
            topics.metrics(user),
            topics.answer(user),
            topics.rollout(user),
        ),
        reads=(*topics.of_device(user), *topics.of_updating_device(user)),
    )


ROLES = (AGGREGATOR, OBSERVER, OPERATOR)  # users who are no devices
