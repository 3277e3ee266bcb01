"""One target under atheris, in a process of its own: libFuzzer never returns from a run.

    python -m toolkit.bench.fuzz.process TARGET STATE_FOLDER REPRODUCER [libFuzzer's arguments]

What of ours the target imports is instrumented, so an input that reaches a new line is kept and
changed further. The changes are the target's own, now and then libFuzzer's. An input that fails is
written to REPRODUCER together with all that the target needs to fail again.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

INSTRUMENTED = ["broker", "firmware_sim", "profiles"]
_OWN_CHANGES = 0.75  # part of the changes that know the input's layout

with atheris.instrument_imports(include=INSTRUMENTED):  # errors are imported already here
    from toolkit.bench.fuzz.target import Mutate, Session
    from toolkit.bench.fuzz.targets import target_of


def main() -> None:
    name, state, reproducer, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = target_of(name)
    mutate = target.mutate(target.seeds())
    atheris.Setup(
        [sys.argv[0], *arguments],
        _one_input(target.open(Path(state)), Path(reproducer)),
        custom_mutator=_mutator(mutate, part=1.0 if target.mutator else _OWN_CHANGES),
    )
    atheris.Fuzz()


def _one_input(session: Session, reproducer: Path) -> Callable[[bytes], None]:
    parent = os.getppid()

    def run(data: bytes) -> None:
        if os.getppid() != parent:  # nobody is left who would read the result
            os._exit(1)
        try:
            session.run(data)
        except BaseException as error:
            reproducer.write_bytes(session.reproducer(data))
            traceback.print_exc()
            sys.stderr.write(f"an input failed: {type(error).__name__}: {error}\n")
            raise

    return run


def _mutator(mutate: Mutate, part: float) -> Callable[[bytes, int, int], bytes]:
    """Changes an input in the target's own way, in that part of all cases."""

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() >= part:
            changed: bytes = atheris.Mutate(data, min(len(data) + 64, most))
            return changed
        for _ in range(rng.randint(1, 3)):
            data = mutate(rng, data)
        return data[:most]

    return change


if __name__ == "__main__":
    main()
