"""The bounded boxes, without a network."""

import threading

from broker.transport.mqtt_rules import packet_bytes
from broker.transport.queues import GIVE_UP_AFTER, WINDOW_BYTES, Inbox, Outbox
from broker.transport.transport import Connected, Disconnected, Packet, QueueLimits


def filled(*payloads: bytes, **limits: int) -> Outbox:
    outbox = Outbox(QueueLimits(**limits))
    for payload in payloads:
        outbox.add("t", payload, retain=False)
    return outbox


def taken(outbox: Outbox, window: int = 100, largest: int | None = None) -> list[bytes]:
    """Everything that may go on the wire now."""
    payloads = []
    while item := outbox.take(window, largest):
        payloads.append(item.payload)
    return payloads


def test_no_more_goes_on_the_wire_than_the_window_holds() -> None:
    outbox = filled(b"1", b"2", b"3")
    first, second = outbox.take(2, None), outbox.take(2, None)
    assert first and second
    assert outbox.take(2, None) is None
    outbox.acknowledge(second)  # a broker may acknowledge in another order
    assert taken(outbox, 2) == [b"3"]


def test_the_window_is_bounded_in_bytes_but_lets_one_large_packet_through() -> None:
    large = bytes(WINDOW_BYTES + 1)
    assert taken(filled(large, b"small")) == [large]
    assert taken(filled(b"small", large)) == [b"small"]


def test_what_was_on_the_wire_goes_first_and_one_at_a_time_after_a_lost_link() -> None:
    outbox = filled(b"1", b"2", b"3", b"4")
    assert taken(outbox, 2) == [b"1", b"2"]
    outbox.link_lost()
    outbox.add("t", b"5", retain=False)
    for expected in (b"1", b"2"):
        item = outbox.take(2, None)
        assert item
        assert (item.payload, outbox.take(2, None)) == (expected, None)
        outbox.acknowledge(item)
    assert taken(outbox, 2) == [b"3", b"4"]


def test_a_packet_on_which_every_link_breaks_is_dropped() -> None:
    outbox = filled(b"innocent", b"breaks", b"follows")
    assert taken(outbox) == [b"innocent", b"breaks", b"follows"]
    outbox.link_lost()  # its acknowledgement was lost with the link
    item = outbox.take(100, None)
    assert item
    outbox.acknowledge(item)
    for _ in range(GIVE_UP_AFTER - 1):
        assert taken(outbox) == [b"breaks"]
        outbox.link_lost()
        outbox.link_lost()  # a link that never came up counts for nothing
    assert (taken(outbox), outbox.dropped) == ([b"breaks"], 0)
    outbox.link_lost()
    assert (taken(outbox), outbox.dropped) == ([b"follows"], 1)
    outbox.link_lost()  # the next one is not blamed for the links before
    assert (taken(outbox), outbox.dropped) == ([b"follows"], 1)


def test_a_packet_that_the_broker_would_not_take_is_dropped() -> None:
    outbox = filled(bytes(100), bytes(101), b"small")
    assert taken(outbox, largest=packet_bytes("t", 100)) == [bytes(100), b"small"]
    assert outbox.dropped == 1


def test_a_full_outbox_drops_the_newest() -> None:
    assert taken(filled(b"1", b"2", b"3", outbox_packets=2)) == [b"1", b"2"]
    outbox = filled(b"1234", b"5678", b"9", outbox_bytes=5)
    assert (taken(outbox), outbox.dropped) == ([b"1234", b"9"], 1)


def test_flush_is_true_when_all_is_acknowledged_and_nothing_dropped() -> None:
    outbox = filled(b"1", b"2", outbox_packets=1)
    item = outbox.take(1, None)
    assert item
    assert not outbox.flush(0.0)
    outbox.acknowledge(item)
    assert outbox.flush(0.0)
    outbox.add("t", b"3", retain=False)
    outbox.add("t", b"does not fit", retain=False)
    item = outbox.take(1, None)
    assert item
    outbox.acknowledge(item)
    assert not outbox.flush(0.0)  # because of the one that did not fit
    assert outbox.flush(0.0)


def test_flush_does_not_wait_for_what_is_published_later() -> None:
    outbox = filled(b"1")
    first = outbox.take(1, None)
    assert first
    flushed = []
    thread = threading.Thread(target=lambda: flushed.append(outbox.flush(20.0)))
    thread.start()
    while not vars(outbox._changed)["_waiters"]:  # until it waits
        pass
    outbox.add("t", b"2", retain=False)
    outbox.acknowledge(first)
    thread.join(20.0)
    assert flushed == [True]


def test_the_inbox_keeps_one_reason_for_an_outage_and_never_loses_a_link_event() -> None:
    inbox = Inbox(QueueLimits(inbox_packets=1))
    lost = Disconnected("second", final=False)
    for event in (Packet("t", b"1"), Disconnected("first", False), lost, Packet("t", b"2")):
        inbox.put(event)
    inbox.put(Connected(None))
    assert [inbox.get(0.0) for _ in range(4)] == [Packet("t", b"1"), lost, Connected(None), None]
    assert (inbox.dropped, inbox.received_bytes) == (1, 2)


def test_the_packet_after_those_that_were_dropped_says_so() -> None:
    inbox = Inbox(QueueLimits(inbox_packets=2))
    for payload in (b"1", b"2", b"3", b"4"):
        inbox.put(Packet("t", payload))
    found = [inbox.get(0.0), inbox.get(0.0)]
    for payload in (b"5", b"6"):
        inbox.put(Packet("t", payload, retained=True))
    found += [inbox.get(0.0), inbox.get(0.0)]
    assert [(p.payload, p.after_gap) for p in found if isinstance(p, Packet)] == [
        (b"1", False),
        (b"2", False),
        (b"5", True),
        (b"6", False),
    ]


def test_a_closed_inbox_gives_what_it_has_and_then_does_not_wait() -> None:
    inbox = Inbox(QueueLimits())
    inbox.put(Packet("t", b"1"))
    inbox.close()
    assert inbox.get(20.0) == Packet("t", b"1")
    assert inbox.get(20.0) is None
