"""One target under atheris, in a process of its own: libFuzzer never returns from a run.

    python -m toolkit.bench.fuzz.process TARGET SEEDS_FOLDER REPRODUCER [libFuzzer's arguments]

What of ours the target imports is instrumented, so an input that reaches a new line is kept and
changed further. The changes are the target's own, now and then libFuzzer's. An input that fails is
written to REPRODUCER together with all that the target needs to fail again.
"""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

INSTRUMENTED = ["broker", "firmware_sim", "profiles"]
_MEMORY = Path("/dev/shm")  # state files are synced after each write, which a disk makes slow
_OWN_CHANGES = 0.75  # part of the changes that know the input's layout

with atheris.instrument_imports(include=INSTRUMENTED):  # errors are imported already here
    from toolkit.bench.fuzz.target import Mutate, Session
    from toolkit.bench.fuzz.targets import target_of


def main() -> None:
    name, folder, reproducer, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = target_of(name)
    seeds = target.seeds()
    for number, seed in enumerate(seeds):
        (Path(folder) / f"seed-{number}").write_bytes(seed)
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as state:
        session = target.open(Path(state))
        atheris.Setup(
            [sys.argv[0], *arguments, folder],
            _one_input(session, Path(reproducer)),
            custom_mutator=_mutator(target.mutate(seeds), own=1.0 if target.mutator else None),
        )
        atheris.Fuzz()


def _one_input(session: Session, reproducer: Path) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        try:
            session.run(data)
        except BaseException as error:
            reproducer.write_bytes(session.reproducer(data))
            traceback.print_exc()
            sys.stderr.write(f"an input failed: {type(error).__name__}: {error}\n")
            raise

    return run


def _mutator(mutate: Mutate, own: float | None) -> Callable[[bytes, int, int], bytes]:
    part = _OWN_CHANGES if own is None else own

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
