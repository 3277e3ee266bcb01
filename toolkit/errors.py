"""Every error of the toolkit, in one tree; the text of each is one sentence.

StemshareError
├── ToolkitError            a command cannot do what it was asked to
│   ├── ModelError          the branch or its file is not what an export needs
│   │   └── UnsupportedOp   a layer needs an operation that has no builtin-only rule
│   ├── ExportError         the export could not be finished; nothing was written
│   ├── ObserverError       a fleet cannot be observed as asked
│   ├── RolloutError        a pack cannot be rolled out, or devices do not run it
│   ├── ExperimentError     a study cannot be run or drawn as asked
│   ├── ProvisionError      a fleet cannot be provisioned as asked
│   │   ├── CertificateError    a certificate cannot be made or read
│   │   └── ConfigurationError  a file of mosquitto cannot be made or read
│   └── MissingExtra        a package of an extra is not installed
└── Interrupted             Ctrl-C; the text states what is kept (exit code 130)
"""

from __future__ import annotations

from typing import ClassVar

from profiles.errors import INTERRUPTED, StemshareError

# What a device or an aggregator does without, by the extra that brings it.
EXTRAS = {"ray": "ray", "minatar": "minatar", "gymnasium": "games", "ale_py": "games"}


class ToolkitError(StemshareError):
    """A command cannot do what it was asked to."""


class ModelError(ToolkitError):
    """The branch, or the file that makes it, is not what an export needs."""


class UnsupportedOp(ModelError):
    """A layer needs an operation that would need the Flex delegate."""

    def __init__(self, layer: str, op: str, reason: str = "") -> None:
        self.layer, self.op, self.reason = layer, op, reason
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"layer {layer!r} needs the operation {op}{because}, "
            "which cannot be trained with TFLite's builtin operations."
        )


class ExportError(ToolkitError):
    """The export could not be finished; the previous bundle is untouched."""


class ExperimentError(ToolkitError):
    """A study cannot be run or drawn as asked."""


class ObserverError(ToolkitError):
    """A fleet cannot be observed as asked."""


class RolloutError(ToolkitError):
    """A pack cannot be rolled out, or a device does not run it."""


class ProvisionError(ToolkitError):
    """The fleet cannot be provisioned as asked."""


class CertificateError(ProvisionError):
    """A certificate cannot be made or read."""


class ConfigurationError(ProvisionError):
    """A mosquitto file is not what provisioning can go on from."""


class MissingExtra(ToolkitError):
    """A package is not installed that a command needs."""

    def __init__(self, package: str) -> None:
        extra = EXTRAS.get(package, "toolkit")
        super().__init__(
            f"this needs the package {package}, which is not installed: "
            f"pip install 'stemshare[{extra}]'."
        )


class Interrupted(StemshareError):
    """Ctrl-C in a command; the text states what is kept."""

    exit_code: ClassVar[int] = INTERRUPTED
    heading: ClassVar[str] = "interrupted; "
