"""Who is present, when more want to be than a fleet has room for."""

from __future__ import annotations

import pytest

from broker.merging.presence import Presence
from broker.protocol.messages import Reason, Refused


def test_joining_and_leaving_say_whether_something_changed() -> None:
    present = Presence()
    assert [present.join("a", ()), present.join("a", ()), present.join("b", ())] == [
        True,
        False,
        True,
    ]
    assert [*present] == ["a", "b"]
    assert [present.leave("a"), present.leave("a")] == [True, False]
    assert [*present] == ["b"]


def test_a_device_that_never_sent_anything_makes_room() -> None:
    present = Presence(most=3)
    known = {"old"}
    for device in ("ghost-1", "old", "ghost-2"):
        present.join(device, known)
    assert present.join("pi-1", known)
    assert [*present] == ["old", "ghost-2", "pi-1"]


def test_devices_that_take_part_are_not_pushed_out() -> None:
    present = Presence(most=2)
    known = {"a", "b"}
    for device in "ab":
        present.join(device, known)
    with pytest.raises(Refused, match=r"^the fleet has its 2 devices\.$") as caught:
        present.join("c", known)
    assert caught.value.reason is Reason.FULL
    assert [*present] == ["a", "b"]


def test_one_that_waits_is_not_present_until_it_joins_again() -> None:
    present = Presence(most=2)
    for device in "ab":
        present.join(device, ())
    assert [present.wait("a"), present.wait("a"), present.wait("c")] == [True, False, True]
    assert ([*present], present.waiting) == (["b"], 2)
    assert present.join("a", ())
    assert ([*present], present.waiting) == (["b", "a"], 1)
    assert [present.leave("c"), present.leave("c")] == [True, False]
    assert present.waiting == 0
    for ghost in "uvwx":
        present.wait(ghost)
    assert present.waiting == 2, "there is room for so many"


def test_the_silent_ones_are_forgotten() -> None:
    present = Presence()
    for device in "abc":
        present.join(device, ())
    assert present.forget_silent({"b", "z"}) == ("a", "c")
    assert [*present] == ["b"]
