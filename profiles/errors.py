"""The root of every error that a person can mend; each package lists its own in its `errors.py`.

StemshareError
├── ProfileError       a profile is not what this version understands
├── broker/errors.py        names, slices, messages, transports, merging, stored state
├── firmware_sim/errors.py  bundles, packs, runtimes, limits, checkpoints, tasks, fleets
└── toolkit/errors.py       models, exports, provisioning, studies

A program catches `StemshareError` and nothing else by name: it prints `report` and ends with the
error's exit code.
"""

from __future__ import annotations

from typing import ClassVar

from profiles.text import printable

FAILED = 1  # exit code of what one sentence explains
INTERRUPTED = 130  # exit code after Ctrl-C or SIGTERM, by the shells' convention


class StemshareError(Exception):
    """Something that a person can mend; its text is one sentence."""

    exit_code: ClassVar[int] = FAILED
    heading: ClassVar[str] = "error: "  # stands before the sentence on a terminal

    @property
    def report(self) -> str:
        """What a program prints before it ends; a part of the sentence may be remote text."""
        return f"{self.heading}{printable(str(self))}"


class ProfileError(StemshareError):
    """A profile was refused; `key` is None when the file as a whole is at fault."""

    def __init__(self, file: str, key: str | None, problem: str) -> None:
        super().__init__(file, key, problem)
        self.file = file
        self.key = key
        self.problem = problem

    def __str__(self) -> str:
        if self.key is None:
            return f"Profile {self.file} {self.problem}."
        return f"In profile {self.file}, key {self.key[:80]!r} {self.problem}."
