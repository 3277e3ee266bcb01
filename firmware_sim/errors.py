"""Every error of a device, in one tree; the text of each is one sentence.

StemshareError
├── BundleError         a bundle is missing, damaged, or of another format
├── PackError           a pack is refused
├── RuntimeUnavailable  no TFLite runtime, or not the wanted one, is installed
├── WrongInput          the inputs of a signature are wrong
├── TuneError           candidates cannot be timed
├── LimitError          the device would need more than its caps
├── SensorError         what the profile limits cannot be read
├── CheckpointError     a state folder that cannot be used
├── TaskError           a task cannot be made, restored or trained
├── SourceError         a source of examples cannot be opened or understood
├── StoreError          the examples that a device keeps cannot be used
├── DeviceClosed        an application uses a device that it has closed
├── Diverged            training diverged
├── FleetRefused        the broker or the aggregator refuses this device
├── Implausible         a message that the device does not act upon (also a WireError)
├── Restart             the device is to start again, with another pack (exit code 75)
└── Stopped             the user asked for a stop (exit code 130)
    └── CapReached      the memory cap asked for it (exit code 3)
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from broker.errors import WireError
from profiles.errors import INTERRUPTED, StemshareError

CAP_REACHED = 3  # exit code of a device that stopped at its memory cap
RESTART = 75  # exit code of a process that tried a pack, for the one that looks after it


class BundleError(StemshareError):
    """A bundle is missing, damaged, or of another format."""


class PackError(StemshareError):
    """A pack is refused."""


class RuntimeUnavailable(StemshareError):
    """No TFLite runtime, or not the wanted one, is installed."""


class WrongInput(StemshareError):
    """The inputs of a signature have wrong names, shapes or types."""


class TuneError(StemshareError):
    """The candidates cannot be timed."""


class LimitError(StemshareError):
    """The device would need more than its caps."""


class SensorError(StemshareError):
    """What the profile limits, such as a temperature, cannot be read."""


class CheckpointError(StemshareError):
    """The state folder cannot be used."""


class TaskError(StemshareError):
    """A task cannot be made, restored or trained."""


class SourceError(StemshareError):
    """A source of examples cannot be opened, or is not what its settings say."""


class StoreError(StemshareError):
    """The examples that a device keeps cannot be used."""


class DeviceClosed(StemshareError):
    """An application uses a device that it has closed."""


class Diverged(StemshareError):
    """Training diverged: continuing cannot help."""


class FleetRefused(StemshareError):
    """The broker or the aggregator refuses this device."""


class Implausible(WireError):
    """A message that may be well-formed, and that this device does not act upon."""


class Restart(StemshareError):
    """The device is to start again: another pack is in use from now on."""

    exit_code: ClassVar[int] = RESTART


class Stopped(StemshareError):
    """The user asked for a stop; everything trained so far is in the checkpoint."""

    exit_code: ClassVar[int] = INTERRUPTED
    heading: ClassVar[str] = ""

    @classmethod
    def keeping(cls, folder: Path) -> Stopped:
        """Returns the error of a device whose checkpoint is in `folder`."""
        return Stopped(f"stopped; {folder} keeps everything, the same command goes on")


class CapReached(Stopped):
    """The memory cap asked for a stop; everything trained so far is in the checkpoint."""

    exit_code: ClassVar[int] = CAP_REACHED
    heading: ClassVar[str] = "error: "

    @classmethod
    def keeping(cls, folder: Path) -> CapReached:
        return CapReached(
            f"the memory cap is reached; {folder} keeps the last checkpoint, "
            "and a bundle exported with a lower memory_cap_mib needs less."
        )
