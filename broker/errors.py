"""Every error of the broker's packages, in one tree; the text of each is one sentence.

StemshareError
├── NameRefused         a fleet or a device cannot be called that
├── SliceError          a file is not a slice, or slices contradict each other
├── WireError           bytes that are no message
│   ├── Oversized       more bytes than a message of this fleet can have
│   └── Unsigned        not signed by the fleet's aggregator
├── Refused             a birth or an update that changes nothing (protocol/messages.py)
├── NotQuantisable      numbers that cannot be quantised, as NaN and infinity
├── TransportError      an address, a password or a certificate that cannot be used
├── LinkRefused         the broker refuses the aggregator
├── Superseded          a newer aggregator has the fleet (exit code 4)
├── SettingsRefused     settings that cannot work together
│   ├── MergeRefused    a merge rule that is set wrongly, or has too few devices
│   └── OptimizerRefused    no such optimiser, or an impossible rate
├── StepRefused         a merged update that does not fit θ_shared, or makes it infinite
└── StoreError          a state folder that cannot be used
"""

from __future__ import annotations

from typing import ClassVar

from profiles.errors import StemshareError

SUPERSEDED = 4  # exit code of an aggregator that a newer one has replaced


class NameRefused(StemshareError):
    """A fleet or a device cannot be called that."""


class SliceError(StemshareError):
    """A file is not a slice, or slices contradict each other."""


class WireError(StemshareError):
    """Bytes that are no message."""


class Oversized(WireError):
    """More bytes than a message of this fleet can have."""


class Unsigned(WireError):
    """A message is not signed by the fleet's aggregator, or for another topic."""


class NotQuantisable(StemshareError):
    """Numbers that cannot be quantised, as NaN and infinity."""


class TransportError(StemshareError):
    """An address, a password or a certificate cannot be used."""


class LinkRefused(StemshareError):
    """The broker refuses the aggregator, and would refuse it again."""


class Superseded(StemshareError):
    """A newer aggregator of the same fleet has taken over; this one must not be started again."""

    exit_code: ClassVar[int] = SUPERSEDED


class SettingsRefused(StemshareError):
    """Settings that cannot work together."""


class MergeRefused(SettingsRefused):
    """The merge rule cannot work as it is set, or with so few devices."""


class OptimizerRefused(SettingsRefused):
    """There is no such optimiser, or its rate is impossible."""


class StepRefused(StemshareError):
    """The merged update does not fit θ_shared, or would make it infinite."""


class StoreError(StemshareError):
    """The state folder cannot be used."""
