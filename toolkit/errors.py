"""Every error that a user can cause, in one tree; each says one clear sentence.

ToolkitError
├── ModelError          the branch or its file is not what an export needs
│   └── UnsupportedOp   a layer needs an operation that has no builtin-only rule
├── ExportError         the export could not be finished; nothing was written
└── ProvisionError      a fleet cannot be provisioned so
    ├── CertificateError    no certificate can be made or read so
    └── ConfigurationError  no file for mosquitto can be made or read so
"""

from __future__ import annotations


class ToolkitError(Exception):
    """Something the user can mend; its text is one sentence."""


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


class ProvisionError(ToolkitError):
    """The fleet cannot be provisioned so."""


class CertificateError(ProvisionError):
    """A certificate cannot be made or read; the text is one sentence."""


class ConfigurationError(ProvisionError):
    """A mosquitto file is not what provisioning can go on from; the text is one sentence."""
