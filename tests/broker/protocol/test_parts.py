"""Messages in parts: any size and order, what is refused, and how much memory it can cost."""

import gc
import hashlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import Oversized, WireError
from broker.protocol.parts import ROOM, SMALLEST, Assembler, split
from broker.protocol.wire import decode, encode

PIECE = SMALLEST - ROOM  # bytes of the message in a smallest part
LIMIT = 100_000
TOPIC = "fleet/device/pi-1/update"
NOISE = 100_000  # bytes; what Python itself keeps of freed tuples and dictionaries


def message(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def parts_of(payload: bytes, packet_bytes: int = SMALLEST) -> list[bytes]:
    return list(split(payload, packet_bytes))


def part(piece: bytes, **said: Any) -> bytes:
    """A part made by hand; otherwise the first of two of a message of twice the piece."""
    fields = {"digest": "0" * 64, "index": 0, "count": 2, "bytes": 2 * len(piece), **said}
    return encode("part", fields, {"part": np.frombuffer(piece, np.uint8)})


@pytest.fixture
def assembler() -> Assembler:
    return Assembler(limit=LIMIT, held_limit=4 * LIMIT)


def added(assembler: Assembler, packets: list[bytes], topic: str = TOPIC) -> list[bytes | None]:
    return [assembler.add(topic, packet) for packet in packets]


# --- whatever is split comes back --------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 40_000), st.integers(SMALLEST, 50_000))
def test_parts_fit_in_packets_and_hold_the_message(size: int, packet_bytes: int) -> None:
    payload = message(size)
    packets = parts_of(payload, packet_bytes)
    assert max(map(len, packets)) <= packet_bytes
    assert len(packets) == -(-size // (packet_bytes - ROOM))
    pieces = [decode(packet, limit=packet_bytes) for packet in packets]
    assert b"".join(piece.tensors["part"].tobytes() for piece in pieces) == payload
    assert [piece.fields for piece in pieces] == [
        {
            "digest": hashlib.sha256(payload).hexdigest(),
            "bytes": size,
            "count": len(packets),
            "index": index,
        }
        for index in range(len(packets))
    ]


def test_the_longest_header_of_a_part_leaves_room() -> None:
    piece = bytes(900_000)
    longest = part(piece, index=10**12, count=10**12 + 1, bytes=10**15)
    assert len(longest) - len(piece) <= ROOM


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_parts_may_come_in_any_order_and_again(data: st.DataObject) -> None:
    """It is whole each time all parts have come since it was whole last."""
    payload = message(data.draw(st.integers(1, 6 * PIECE)))
    packets = parts_of(payload, data.draw(st.sampled_from([SMALLEST, 5_000, 30_000])))
    everyone = range(len(packets))
    order = data.draw(st.permutations([*everyone, *everyone]))
    order += data.draw(st.lists(st.sampled_from(everyone), max_size=5))
    assembler, missing = Assembler(limit=LIMIT, held_limit=2 * LIMIT), set(everyone)
    for index in order:
        missing.discard(index)
        assert assembler.add(TOPIC, packets[index]) == (None if missing else payload)
        missing = missing or set(everyone)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_two_messages_may_mix_on_one_topic(data: st.DataObject) -> None:
    one, other = (message(data.draw(st.integers(PIECE, 5 * PIECE)), seed) for seed in (1, 2))
    packets = data.draw(st.permutations(parts_of(one) + parts_of(other, 5_000)))
    assembler = Assembler(limit=LIMIT, held_limit=2 * LIMIT)
    wholes = [whole for whole in added(assembler, packets) if whole is not None]
    assert sorted(wholes) == sorted([one, other])


def test_topics_do_not_mix(assembler: Assembler) -> None:
    first, second = parts_of(message(2 * PIECE))
    assert assembler.add("a", first) is None
    assert assembler.add("b", second) is None
    assert assembler.add("b", first) == message(2 * PIECE)
    assert assembler.add("a", second) == message(2 * PIECE)


def test_a_part_may_be_the_whole(assembler: Assembler) -> None:
    payload = message(100)
    assert added(assembler, parts_of(payload)) == [payload]


@pytest.mark.parametrize("newest_first", [True, False])
def test_what_is_left_of_a_longer_retained_message_does_no_harm(
    assembler: Assembler, newest_first: bool
) -> None:
    """The old message had five parts and the new one has three: 3 and 4 are still retained."""
    old, new = parts_of(message(5 * PIECE, 1)), parts_of(message(3 * PIECE, 2))
    stale = old[3:]
    packets = new + stale if newest_first else stale + new
    wholes = [whole for whole in added(assembler, packets) if whole is not None]
    assert wholes == [message(3 * PIECE, 2)]
    third = message(4 * PIECE, 3)  # and goes on doing none
    assert added(assembler, parts_of(third)) == [None, None, None, third]


def test_what_is_left_of_two_older_messages_does_no_harm(assembler: Assembler) -> None:
    stale = [parts_of(message(6 * PIECE, seed))[seed] for seed in (3, 4, 5)]
    new = parts_of(message(3 * PIECE))
    assert added(assembler, [*stale, *new]) == [None] * 5 + [message(3 * PIECE)]


def test_of_three_messages_on_a_topic_the_one_untouched_longest_is_forgotten(
    assembler: Assembler,
) -> None:
    a, b, c = (parts_of(message(2 * PIECE, seed)) for seed in (1, 2, 3))
    added(assembler, [a[0], b[0], a[0], c[0]])  # b is the one
    assert assembler.add(TOPIC, b[1]) is None  # which begins anew, and a is forgotten
    assert assembler.add(TOPIC, c[1]) == message(2 * PIECE, 3)
    assert assembler.add(TOPIC, b[0]) == message(2 * PIECE, 2)
    assert assembler.add(TOPIC, a[1]) is None


@pytest.mark.parametrize("missing", range(4))
def test_without_one_part_nothing_is_whole(assembler: Assembler, missing: int) -> None:
    packets = parts_of(message(4 * PIECE))
    others = packets[:missing] + packets[missing + 1 :]
    assert added(assembler, others * 3) == [None] * 9
    assert assembler.add(TOPIC, packets[missing]) == message(4 * PIECE)


# --- what is refused ---------------------------------------------------------------------


def refusal(assembler: Assembler, packet: bytes) -> str:
    with pytest.raises(WireError) as caught:
        assembler.add(TOPIC, packet)
    return str(caught.value)


def test_parts_of_something_else_are_refused_and_forgotten(assembler: Assembler) -> None:
    payload = message(2 * PIECE)
    first, second = parts_of(payload)
    digest = hashlib.sha256(payload).hexdigest()
    forged = part(payload[:PIECE], digest=digest, index=1)  # the first piece again
    assert assembler.add(TOPIC, first) is None
    wrong = "the parts of a message do not add up to its digest."
    assert refusal(assembler, forged) == wrong
    assert added(assembler, [first, second]) == [None, payload]


def test_a_message_that_is_shorter_than_it_claims_is_refused(assembler: Assembler) -> None:
    digest = hashlib.sha256(b"ab").hexdigest()
    assembler.add(TOPIC, part(b"a", digest=digest, bytes=4000))
    wrong = "the parts of a message do not add up to its digest."
    assert refusal(assembler, part(b"b", digest=digest, bytes=4000, index=1)) == wrong


@pytest.mark.parametrize("said", [{"count": 3}, {"bytes": 2 * PIECE + 1}])
def test_parts_that_contradict_each_other_are_refused(
    assembler: Assembler, said: dict[str, int]
) -> None:
    payload = message(2 * PIECE)
    first, second = parts_of(payload)
    assembler.add(TOPIC, first)
    digest = hashlib.sha256(payload).hexdigest()
    contradiction = part(payload[PIECE:], digest=digest, **{"index": 1, **said})
    wrong = "a part contradicts the others of its message."
    assert refusal(assembler, contradiction) == wrong
    assert added(assembler, [second, first]) == [None, payload]


def test_more_bytes_than_a_message_claims_are_not_kept(assembler: Assembler) -> None:
    """Otherwise every part could be as large as the largest message."""
    claim = {"count": 5, "bytes": 20_000}
    assembler.add(TOPIC, part(bytes(15_000), **claim))
    assembler.add(TOPIC, part(bytes(4_000), **claim))  # the same one, smaller
    assembler.add(TOPIC, part(bytes(16_000), index=1, **claim))
    wrong = "a part contradicts the others of its message."
    assert refusal(assembler, part(b"x", index=2, **claim)) == wrong
    assert refusal(assembler, part(bytes(20_001), **claim)) == "this is no part of a message."


@pytest.mark.parametrize(
    "said",
    [
        {"index": 2},
        {"index": -1},
        {"index": True},
        {"index": 0.0},
        {"index": "0"},
        {"index": None},
        {"count": 0},
        {"count": -1},
        {"count": True},
        {"count": 2.0},
        {"bytes": True},
        {"bytes": 0},
        {"bytes": -5},
        {"bytes": 19},
        {"bytes": "40"},
        {"digest": "0" * 63},
        {"digest": None},
        {"digest": ["0"] * 64},
    ],
    ids=str,
)
def test_a_part_that_cannot_be_one_is_refused(assembler: Assembler, said: dict[str, Any]) -> None:
    assert refusal(assembler, part(bytes(20), **said)) == "this is no part of a message."


def test_what_is_no_part_is_refused(assembler: Assembler) -> None:
    fields = {"digest": "0" * 64, "index": 0, "count": 2, "bytes": 40}
    piece = np.zeros(20, np.uint8)
    for packet in (
        encode("update", fields, {"part": piece}),
        encode("part", fields, {"other": piece}),
        encode("part", fields),
        encode("part", fields, {"part": piece.astype(np.int32)}),
        encode("part", fields, {"part": piece[:0]}),
        *(
            encode("part", {n: v for n, v in fields.items() if n != left}, {"part": piece})
            for left in fields
        ),
    ):
        assert refusal(assembler, packet) == "this is no part of a message."
    assert refusal(assembler, b"") == "the message is cut off before its header."


def test_a_message_in_more_parts_than_it_needs_is_refused(assembler: Assembler) -> None:
    """Each kept piece costs more than its bytes, so a message may not consist of crumbs."""
    claim = {"bytes": 10 * PIECE}
    assert assembler.add(TOPIC, part(b"x", count=11, **claim)) is None
    wrong = "a message has more parts than its size needs."
    assert refusal(assembler, part(b"x", count=12, **claim)) == wrong
    assert refusal(assembler, part(b"x", count=10**15, **claim)) == wrong


# --- memory ------------------------------------------------------------------------------


def kept_by(action: Callable[[], object]) -> int:
    """Bytes that are still allocated after the action."""
    gc.collect()
    tracemalloc.start()
    try:
        result = action()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        del result
        return kept
    finally:
        tracemalloc.stop()


def test_a_claim_beyond_the_limit_is_refused_before_anything_is_kept(assembler: Assembler) -> None:
    claim = part(bytes(50_000), bytes=LIMIT + 1)
    with pytest.raises(Oversized) as caught:
        assembler.add(TOPIC, claim)
    assert str(caught.value) == f"a message has {LIMIT + 1} bytes; at most {LIMIT} are taken."
    del caught

    def claims() -> None:
        for number in range(20):
            with pytest.raises(Oversized):
                assembler.add(f"{TOPIC}/{number}", claim)

    assert kept_by(claims) < NOISE < 20 * 50_000


def test_a_packet_beyond_the_limit_is_refused(assembler: Assembler) -> None:
    fields = {"digest": "0" * 64, "index": 0, "count": 1, "bytes": 1}
    tensors = {"part": np.zeros(1, np.uint8), "more": np.zeros(LIMIT + ROOM, np.uint8)}
    with pytest.raises(Oversized):
        assembler.add(TOPIC, encode("part", fields, tensors))
    whole = message(LIMIT)
    assert added(assembler, parts_of(whole, LIMIT + ROOM)) == [whole]


@pytest.mark.parametrize(
    ("piece_bytes", "topic_length", "topics"),
    [(90_000, 20, 30), (5_000, 20, 300), (1, 20, 900), (1, 20_000, 100)],
    ids=["large", "small", "crumbs", "long topics"],
)
def test_memory_is_bounded_whatever_comes_and_what_was_begun_can_be_finished(
    piece_bytes: int, topic_length: int, topics: int
) -> None:
    """Each topic has the first part of a message; there is room for few of them."""
    held_limit = 500_000
    assembler = Assembler(limit=LIMIT, held_limit=held_limit)
    payload = message(piece_bytes + PIECE)
    said = {"digest": hashlib.sha256(payload).hexdigest(), "bytes": len(payload)}
    first, last = part(payload[:piece_bytes], **said), part(payload[piece_bytes:], **said, index=1)

    def flood() -> None:
        for number in range(topics):
            assembler.add(f"{number:0{topic_length}}", first)

    assert kept_by(flood) < held_limit + NOISE
    assert assembler.add(f"{0:0{topic_length}}", last) == payload
    assert assembler.add(f"{topics - 1:0{topic_length}}", last) is None, "it was not begun"


def test_two_hundred_devices_at_once_all_finish_in_the_end() -> None:
    """They take turns, part by part, as devices do that send at the same moment."""
    assembler = Assembler(limit=LIMIT, held_limit=20 * LIMIT)
    sending = {f"device-{k}": parts_of(message(60_000, k), 10_000) for k in range(200)}
    tries = 0
    while sending:
        tries += 1
        assert tries <= 12, f"{len(sending)} still send"
        whole = set()
        for index in range(max(map(len, sending.values()))):
            for topic, packets in sending.items():
                if assembler.add(topic, packets[index]) is not None:
                    whole.add(topic)
        for topic in whole:
            del sending[topic]


def test_what_was_given_up_makes_room() -> None:
    assembler = Assembler(limit=LIMIT, held_limit=LIMIT)
    assembler.add("given up", parts_of(message(90_000))[0])
    payload = message(90_000, 1)
    for _ in range(40):
        arrived = [p for p in added(assembler, parts_of(payload), "alive") if p is not None]
        if arrived:
            break
    assert arrived == [payload]


def test_many_parts_of_one_message_are_bounded_by_what_it_claims() -> None:
    """Parts as large as the whole message, each with another index."""
    assembler = Assembler(limit=LIMIT, held_limit=100 * LIMIT)
    packets = [part(bytes(90_000), index=i, count=21, bytes=LIMIT) for i in range(20)]

    def flood() -> None:
        for packet in packets:
            try:
                assembler.add(TOPIC, packet)
            except WireError:
                continue

    assert kept_by(flood) < LIMIT + NOISE


def test_what_is_whole_is_not_kept(assembler: Assembler) -> None:
    packets = parts_of(message(LIMIT))

    def work() -> None:
        for _ in range(5):
            added(assembler, packets)

    assert kept_by(work) < NOISE


def test_held_memory_counts_what_was_forgotten_refused_and_completed() -> None:
    """After any history there is room for all but the two that the topic still waits for."""
    assembler = Assembler(limit=LIMIT, held_limit=210_000)
    for seed in range(30):
        payload = message(3 * PIECE, seed)
        packets = parts_of(payload)
        added(assembler, [packets[0], packets[0], packets[1]])
        if seed % 3 == 0:
            assembler.add(TOPIC, packets[2])
        elif seed % 3 == 1:
            digest = hashlib.sha256(payload).hexdigest()
            refusal(assembler, part(b"x", digest=digest, count=1, bytes=1))
    others = [message(80_000, seed) for seed in (100, 101)]
    for index, payload in enumerate(others):
        assert not any(added(assembler, parts_of(payload, 10_000)[:-1], f"topic-{index}"))
    for index, payload in enumerate(others):
        assert assembler.add(f"topic-{index}", parts_of(payload, 10_000)[-1]) == payload


def test_a_message_larger_than_all_that_may_be_held_still_arrives() -> None:
    assembler = Assembler(limit=LIMIT, held_limit=1)
    payload = message(LIMIT)
    assert added(assembler, parts_of(payload))[-1] == payload
