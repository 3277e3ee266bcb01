"""Who may be in the fleet: a list of names, and of two devices with one name the newer one."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from pathlib import Path

from broker.errors import NameRefused, SettingsRefused
from broker.protocol.messages import Reason, Refused
from broker.protocol.topics import check_name

_DEVICES = 10_000  # of which the instances are remembered
_EARLIER = 4  # instances of one device that a newer one has replaced


class Members:
    """The names in a file, one a line; it is read again when it has changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed = -1
        self._names: frozenset[str] = frozenset()
        self._read()

    def check(self, device: str) -> None:
        """Raises `Refused` for a device that is not in the list."""
        with contextlib.suppress(SettingsRefused, NameRefused):  # while it is edited: as it was
            self._read()
        if device not in self._names:
            raise Refused(
                Reason.NOT_A_MEMBER, f"{device[:80]!r} is not in the fleet's list of members."
            )

    def _read(self) -> None:
        try:
            changed = self._file.stat().st_mtime_ns
            if changed != self._changed:
                names = self._file.read_text(encoding="utf-8").split()
                self._names = frozenset(check_name("device", name) for name in names)
                self._changed = changed
        except OSError as error:
            raise SettingsRefused(
                f"the list of members {self._file} cannot be read ({error.strerror})."
            ) from None


class Instances:
    """Remembers which program speaks for a device: every start of one draws a new instance."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, list[str]] = OrderedDict()  # the newest first

    def check(self, device: str, instance: str) -> None:
        """Raises `Refused` for a program that a newer one with the same name has replaced."""
        if not instance:  # of a version that draws none
            return
        known = self._of.setdefault(device, [])
        self._of.move_to_end(device)
        if instance in known[1:]:
            raise Refused(
                Reason.SUPERSEDED,
                f"another program has joined as {device!r} since this one did; "
                "no two devices of a fleet may have the same --id.",
            )
        if instance not in known:
            known.insert(0, instance)
            del known[1 + _EARLIER :]
        if len(self._of) > _DEVICES:
            self._of.popitem(last=False)
