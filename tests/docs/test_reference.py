"""The reference pages name everything that the code has, with the same values."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from broker.aggregator.records.counters import Counters
from broker.merging.merge import MERGES
from broker.protocol.messages import Message, Reason, Update
from broker.protocol.quantisation import ENCODINGS
from broker.protocol.topics import ROOT as TOPIC_ROOT
from broker.protocol.topics import Topics
from firmware_sim.device.refusals import GO_ON
from profiles import Profile, load_profile, profile_names

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8")
JSON = {str: "string", int: "integer", bool: "boolean"}


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table."""
    found = re.findall(r"^\| (.*) \|$", text, flags=re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in found]


def section(text: str, heading: str) -> str:
    (_, after) = re.split(rf"^#+ {heading}$", text, maxsplit=1, flags=re.MULTILINE)
    return re.split(r"^#+ ", after, maxsplit=1, flags=re.MULTILINE)[0]


def test_protocol_has_every_topic() -> None:
    topics = Topics("garden")
    device = "<id>"
    made = {
        topics.aggregator_state,
        topics.aggregator_metrics,
        topics.report,
        topics.aggregator_command,
        topics.aggregator_answer,
        topics.home_available,
        topics.shared,
        *(
            topic(device)
            for topic in (
                topics.state,
                topics.update,
                topics.verdict,
                topics.reply,
                topics.metrics,
                topics.command,
                topics.answer,
                topics.offer,
                topics.pack,
                topics.rollout,
                topics.home_state,
                topics.home_switch,
            )
        ),
    }
    written = {row[0].strip("`") for row in rows(section(PROTOCOL, "Topics"))} - {"topic"}
    assert {f"{topics.root}/{topic}" for topic in written} == made
    assert f"`{TOPIC_ROOT}/<fleet>/`" in PROTOCOL


def test_protocol_has_every_field_of_every_message() -> None:
    made = set()
    for kind in get_args(Message):
        hints = get_type_hints(kind)
        wire = kind.WIRE_NAMES if kind is Update else {}
        for field in fields(kind):
            if field.name != "tensors":
                sent = wire.get(field.name, field.name)
                made.add((kind.KIND, field.name, sent, JSON.get(hints[field.name], "object")))
    table = rows(section(PROTOCOL, "Fields of each kind"))[1:]
    assert {tuple(cell.strip("`") for cell in row[:4]) for row in table} == made


def test_protocol_has_every_reason_and_what_the_device_does() -> None:
    table = rows(section(PROTOCOL, "Verdicts"))[1:]
    named = {reason: row[2] for row in table for reason in re.findall(r"`([a-z-]+)`", row[0])}
    assert set(named) == {str(reason) for reason in Reason}
    stops = {reason for reason, does in named.items() if does.startswith("stops")}
    assert stops.isdisjoint(GO_ON)
    assert set(GO_ON) <= set(named) - stops


def test_protocol_has_every_encoding_merge_rule_and_counter() -> None:
    assert {row[0] for row in rows(section(PROTOCOL, "Encodings of an update"))[1:]} == {
        f"`{encoding}`" for encoding in ENCODINGS
    }
    assert {row[0] for row in rows(section(PROTOCOL, "Merging"))[1:]} == {
        f"`{merge}`" for merge in MERGES
    }
    for counter in vars(Counters()):
        assert re.search(rf"`{counter}[`{{]", section(PROTOCOL, "Counters")), counter


def test_profiles_page_has_every_key_with_its_bounds_and_meaning() -> None:
    text = (DOCS / "profiles.md").read_text(encoding="utf-8")
    table = {row[0].strip("`"): row[1:] for row in rows(section(text, "Keys"))[1:]}
    keys = [key for key in fields(Profile) if key.name != "name"]
    assert set(table) == {key.name for key in keys} | {"extends"}
    for key in keys:
        takes, meaning = table[key.name]
        assert meaning == key.metadata["doc"]
        for choice in get_args(key.type):
            assert f'`"{choice}"`' in takes
        if key.type in (int, float):
            assert f"{key.metadata['least']:,} to {key.metadata['most']:,}" in takes
        assert key.metadata["unit"] in takes


@pytest.mark.parametrize("name", profile_names())
def test_profiles_page_has_the_values_of_the_shipped(name: str) -> None:
    text = (DOCS / "profiles.md").read_text(encoding="utf-8")
    head, *table = rows(section(text, "Shipped profiles"))
    column = head.index(name)
    assert set(head[1:]) == set(profile_names())
    values = {row[0].strip("`"): row[column] for row in table}
    profile = load_profile(name)
    expected = {key.name: str(getattr(profile, key.name)) for key in fields(Profile)}
    assert values == {k: v for k, v in expected.items() if k in values}
    missing = expected.keys() - values.keys()
    usual = {key.name: key.default for key in fields(Profile)}
    assert all(getattr(profile, k) == usual[k] for k in missing - {"name", "description"})
