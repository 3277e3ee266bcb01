"""Rules of MQTT that every transport follows: topics, filters and the sizes of packets."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_TEXT = 65_535  # bytes of a user, a password or a topic: MQTT counts them in 16 bits
LARGEST_PACKET = 268_435_455  # bytes: MQTT counts a packet in 28 bits
PACKET_ROOM = 1024  # bytes that MQTT's own header, topic and properties need in a packet


def matches(topic_filter: str, topic: str) -> bool:
    """Returns whether a filter matches: `+` is any one level, a final `#` any number of levels."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


def check_topic(topic: str) -> None:
    """Raises ValueError for a topic on which nothing can be published."""
    if not topic or set(topic) & set("+#\0") or len(topic.encode()) > LONGEST_TEXT:
        raise ValueError(f"nothing can be published on topic {topic[:80]!r}.")


def check_filters(filters: Sequence[str]) -> tuple[str, ...]:
    """Returns the filters; raises ValueError for one that is not valid in MQTT."""
    for name in filters:
        *before, last = name.split("/")
        wild = [level for level in (*before, last) if {*level} & {*"+#\0"}]
        if not name or "#" in before or not {*wild} <= {"+", "#"}:
            raise ValueError(f"nothing can be subscribed to with the filter {name[:80]!r}.")
    return tuple(filters)


def packet_bytes(topic: str, payload_bytes: int) -> int:
    """Returns the bytes of a whole PUBLISH packet, as a broker counts them against its limit.

    One type byte, 1–4 length bytes, then the rest: 2 + topic, 2 packet identifier, 1 property
    length (MQTT 5), payload.
    """
    rest = 2 + len(topic.encode()) + 2 + 1 + payload_bytes
    length_bytes = next(n for n in (1, 2, 3, 4) if rest < 128**n or n == 4)
    return 1 + length_bytes + rest
