"""What a device asks of a source: the examples that its bundle takes, and where it lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker.log import Log
from broker.transport.address import Credentials
from broker.transport.options import DEFAULT_BROKER
from firmware_sim.tensor_spec import TensorSpec

CLASSES_FILE = "classes.json"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every source is opened with."""

    x: TensorSpec  # one example
    y: TensorSpec | None = None  # one target; None: the branch learns without labels
    outputs: int | None = None  # number of classes, if the target is one
    settings: Path | None = None  # TOML file of the source
    device: str = "device"
    memory: Path | None = None  # folder of the state for what a source has to remember
    alone: bool = True  # without a fleet
    broker: str = DEFAULT_BROKER  # of the fleet
    credentials: Credentials = field(default_factory=Credentials)
    log: Log | None = None

    @property
    def classes_file(self) -> Path | None:
        return None if self.memory is None else self.memory / CLASSES_FILE

    def tell(self, event: str, **fields: object) -> None:
        """Logs what a person should know about a source."""
        if self.log is not None:
            self.log.event(event, **fields)
