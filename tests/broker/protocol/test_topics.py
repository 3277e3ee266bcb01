"""The topics of a fleet, exactly; who hears what; which names there can be."""

import pytest

from broker.errors import NameRefused
from broker.protocol.topics import Topics, check_name
from broker.transport.mqtt_rules import matches

TOPICS = Topics("greenhouse")


def test_every_topic_is_exactly_this() -> None:
    """Devices in the field rely on them."""
    assert TOPICS.root == "stemshare/v1/greenhouse"
    assert TOPICS.aggregator_state == "stemshare/v1/greenhouse/aggregator/state"
    assert TOPICS.aggregator_metrics == "stemshare/v1/greenhouse/aggregator/metrics"
    assert TOPICS.shared == "stemshare/v1/greenhouse/shared"
    assert TOPICS.state("pi-1") == "stemshare/v1/greenhouse/device/pi-1/state"
    assert TOPICS.update("pi-1") == "stemshare/v1/greenhouse/device/pi-1/update"
    assert TOPICS.metrics("pi-1") == "stemshare/v1/greenhouse/device/pi-1/metrics"
    assert TOPICS.verdict("pi-1") == "stemshare/v1/greenhouse/device/pi-1/verdict"
    assert TOPICS.aggregator_command == "stemshare/v1/greenhouse/aggregator/command"
    assert TOPICS.aggregator_answer == "stemshare/v1/greenhouse/aggregator/answer"
    assert TOPICS.home_available == "stemshare/v1/greenhouse/home/available"
    assert TOPICS.home_state("pi-1") == "stemshare/v1/greenhouse/home/pi-1/state"
    assert TOPICS.home_switch("pi-1") == "stemshare/v1/greenhouse/home/pi-1/pause"
    assert TOPICS.report == "stemshare/v1/greenhouse/aggregator/report"
    assert TOPICS.command("pi-1") == "stemshare/v1/greenhouse/device/pi-1/command"
    assert TOPICS.answer("pi-1") == "stemshare/v1/greenhouse/device/pi-1/answer"
    assert TOPICS.offer("pi-1") == "stemshare/v1/greenhouse/device/pi-1/offer"
    assert TOPICS.pack("pi-1") == "stemshare/v1/greenhouse/device/pi-1/pack"
    assert TOPICS.rollout("pi-1") == "stemshare/v1/greenhouse/device/pi-1/rollout"
    assert TOPICS.reply("pi-1") == "stemshare/v1/greenhouse/device/pi-1/shared"


def written(topics: Topics, device: str) -> dict[str, str]:
    """Every topic that there is when there is one device, by name."""
    return {
        "aggregator_state": topics.aggregator_state,
        "aggregator_metrics": topics.aggregator_metrics,
        "shared": topics.shared,
        "shared part": f"{topics.shared}/0",
        "state": topics.state(device),
        "update": topics.update(device),
        "update part": f"{topics.update(device)}/12",
        "metrics": topics.metrics(device),
        "verdict": topics.verdict(device),
        "report": topics.report,
        "command": topics.command(device),
        "answer": topics.answer(device),
        "aggregator_command": topics.aggregator_command,
        "aggregator_answer": topics.aggregator_answer,
        "home_available": topics.home_available,
        "home_state": topics.home_state(device),
        "home_switch": topics.home_switch(device),
        "offer": topics.offer(device),
        "pack": topics.pack(device),
        "rollout": topics.rollout(device),
        "reply": topics.reply(device),
        "reply part": f"{topics.reply(device)}/3",
    }


def heard(filters: tuple[str, ...], topics: dict[str, str]) -> set[str]:
    return {n for n, topic in topics.items() if any(matches(f, topic) for f in filters)}


@pytest.mark.parametrize("device", ["pi-1", "7", "shared", "state"])
def test_who_hears_what(device: str) -> None:
    everything = written(TOPICS, device)
    own = "aggregator_state"
    assert heard(TOPICS.of_aggregator(), everything) == {
        own,
        "aggregator_command",
        "state",
        "update",
        "update part",
    }
    assert heard(TOPICS.of_device(device), everything) == {
        "aggregator_state",
        "shared",
        "shared part",
        "verdict",
        "command",
        "reply",
        "reply part",
    }
    seen = {"aggregator_state", "aggregator_metrics", "report", "state", "metrics", "rollout"}
    assert heard(TOPICS.of_observer(), everything) == seen
    assert heard(TOPICS.of_operator(), everything) == {
        "aggregator_answer",
        "answer",
        "state",
        "rollout",
    }
    assert heard(TOPICS.of_updating_device(device), everything) == {"offer", "pack"}
    others = {"aggregator_state", "shared", "shared part"}
    assert heard(TOPICS.of_device("pi-2"), everything) == others
    elsewhere = Topics("field")
    assert heard((*elsewhere.of_aggregator(), *elsewhere.of_device(device)), everything) == set()


def test_only_parts_end_in_a_number() -> None:
    """That is how the receiver knows them, whatever fleets and devices are called."""
    for name, topic in written(Topics("1"), "2").items():
        assert topic.rpartition("/")[2].isdigit() == name.endswith("part")


@pytest.mark.parametrize("device", ["pi-1", "7", "update", "state", "a.b_c-d"])
def test_the_sender_of_what_a_device_wrote(device: str) -> None:
    assert TOPICS.sender(TOPICS.state(device)) == (device, "state")
    assert TOPICS.sender(TOPICS.update(device)) == (device, "update")


@pytest.mark.parametrize(
    "topic",
    [
        "",
        TOPICS.root,
        TOPICS.shared,
        TOPICS.aggregator_state,
        TOPICS.verdict("pi-1"),
        TOPICS.reply("pi-1"),
        f"{TOPICS.update('pi-1')}/extra",
        f"{TOPICS.root}/device/pi-1",
        f"{TOPICS.root}/device/pi/1/update",
        Topics("field").update("pi-1"),
        f"other/{TOPICS.update('pi-1')}",
    ],
)
def test_no_device_wrote_these(topic: str) -> None:
    assert TOPICS.sender(topic) is None


@pytest.mark.parametrize("name", ["a", "0", "pi-1", "Pi_2.lan", "x" * 63, "aggregator2", "1.2.3"])
def test_names_that_there_can_be(name: str) -> None:
    assert check_name("device", name) == name
    assert Topics(name).root == f"stemshare/v1/{name}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "+",
        "#",
        "a/b",
        "a+",
        "$SYS",
        ".hidden",
        "-flag",
        "_a",
        "a b",
        "a\n",
        "a\0",
        "é",
        "x" * 64,
    ],
)
def test_names_that_there_cannot_be(name: str) -> None:
    with pytest.raises(NameRefused) as caught:
        check_name("device", name)
    assert str(caught.value) == (
        f"a device cannot be called {name!r}: a name starts with a letter or digit and has at "
        "most 63 letters, digits, dots, underscores and hyphens."
    )
    with pytest.raises(NameRefused, match=r"^a fleet cannot be called "):
        Topics(name)


def test_a_refusal_does_not_repeat_a_book() -> None:
    with pytest.raises(NameRefused) as caught:
        check_name("device", "x" * 10**6)
    assert len(str(caught.value)) < 250


def test_nobody_else_is_called_aggregator() -> None:
    with pytest.raises(NameRefused) as caught:
        check_name("device", "aggregator")
    assert str(caught.value) == (
        "a device cannot be called 'aggregator': that is the aggregator's own name."
    )
