"""Every error of the broker's packages, in one tree; the text of each is one sentence.

StemshareError
├── NameRefused         a fleet or a device cannot be called that
├── SliceError          a file is not a slice, or slices contradict each other
├── WireError           bytes that are no message
│   ├── Oversized       more bytes than anybody here sends
│   └── Unsigned        not signed by the fleet's aggregator
├── Refused             a birth or an update that changes nothing (protocol/messages.py)
├── NotQuantisable      numbers that no code stands for
├── TransportError      an address, a password or a certificate that cannot be used
├── LinkRefused         the broker does not let the aggregator in
├── SettingsRefused     settings that cannot work together
│   ├── MergeRefused    a merge rule that is set wrongly, or has too few devices
│   └── OptimizerRefused    no such optimiser, or an impossible rate
├── StepRefused         a merged update that does not fit θ_shared, or makes it infinite
└── StoreError          a state folder that cannot be used
"""

from __future__ import annotations

from profiles.errors import StemshareError


class NameRefused(StemshareError):
    """A fleet or a device cannot be called that."""


class SliceError(StemshareError):
    """A file is not a slice, or slices contradict each other."""


class WireError(StemshareError):
    """Bytes that are no message."""


class Oversized(WireError):
    """More bytes than anybody here sends."""


class Unsigned(WireError):
    """A message is not signed by the fleet's aggregator, or for another topic."""


class NotQuantisable(StemshareError):
    """Numbers that no code stands for."""


class TransportError(StemshareError):
    """An address, a password or a certificate cannot be used."""


class LinkRefused(StemshareError):
    """The broker does not let the aggregator in, and will not."""


class SettingsRefused(StemshareError):
    """Settings that cannot work together."""


class MergeRefused(SettingsRefused):
    """The merge rule cannot work as it is set, or with that few devices."""


class OptimizerRefused(SettingsRefused):
    """There is no such optimiser, or its rate is impossible."""


class StepRefused(StemshareError):
    """The merged update does not fit θ_shared, or would make it infinite."""


class StoreError(StemshareError):
    """The state folder cannot be used."""
