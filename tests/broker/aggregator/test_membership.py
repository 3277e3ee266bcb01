"""The list of members, and two devices with one name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.aggregator.membership import Instances, Members
from broker.errors import NameRefused, SettingsRefused
from broker.protocol.messages import Reason, Refused


def test_only_those_in_the_list_may_join(tmp_path: Path) -> None:
    file = tmp_path / "members"
    file.write_text("pi-1\npi-2\n")
    members = Members(file)
    members.check("pi-1")
    with pytest.raises(
        Refused, match=r"^'pi-3' is not in the fleet's list of members\.$"
    ) as caught:
        members.check("pi-3")
    assert caught.value.reason is Reason.NOT_A_MEMBER


def test_the_list_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "members"
    file.write_text("pi-1\n")
    members = Members(file)
    file.write_text("pi-1\npi-3\n")
    os.utime(file, ns=(1, 1))
    members.check("pi-3")
    file.write_text("pi-3\n")
    os.utime(file, ns=(2, 2))
    with pytest.raises(Refused):
        members.check("pi-1")  # was taken out
    file.write_text("pi/3\n")
    os.utime(file, ns=(3, 3))
    members.check("pi-3")  # of a list that cannot be read nothing is believed
    file.unlink()
    members.check("pi-3")


def test_a_list_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsRefused, match=r"^the list of members .* cannot be read"):
        Members(tmp_path / "missing")
    (tmp_path / "members").write_text("pi/1\n")
    with pytest.raises(NameRefused):
        Members(tmp_path / "members")


def test_the_older_of_two_programs_with_one_name_is_refused() -> None:
    instances = Instances()
    for instance in ("a", "a", "b", "b"):  # a restart, then nothing new
        instances.check("pi-1", instance)
    with pytest.raises(Refused, match=r"^another program has joined as 'pi-1'") as caught:
        instances.check("pi-1", "a")
    assert caught.value.reason is Reason.SUPERSEDED
    instances.check("pi-1", "b")
    instances.check("pi-2", "a")  # names of others do not matter


def test_a_version_without_instances_is_let_in() -> None:
    instances = Instances()
    for instance in ("a", "", "b", ""):
        instances.check("pi-1", instance)


def test_what_is_remembered_is_bounded() -> None:
    instances = Instances()
    for number in range(100):
        instances.check("pi-1", str(number))
    for number in range(20_000):
        instances.check(f"d{number}", "x")
    assert len(instances._of) == 10_000
    assert all(len(known) <= 5 for known in instances._of.values())
