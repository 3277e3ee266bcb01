"""Targets that read a state folder: the aggregator's snapshot and journal, a device's checkpoint.

Their parts end with checksums. An input is tried as it is and, where it can be read so far, once
more with its checksum made right: what lies behind it must bear anything too.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from broker.aggregator.build import identity_of
from broker.aggregator.storage.check import check_state
from broker.aggregator.storage.store import SNAPSHOT, Store
from broker.durable import write_sealed
from broker.errors import StoreError, WireError
from broker.merging.coordinator import Entry, State
from broker.protocol.messages import to_bytes
from broker.protocol.wire import decode
from broker.transport.in_memory import MemoryBroker
from firmware_sim.errors import CheckpointError
from firmware_sim.training.checkpoint import FILE, Checkpoint, Checkpoints
from toolkit.bench.fuzz import samples
from toolkit.bench.fuzz.changes import LARGEST
from toolkit.bench.fuzz.parties import frames
from toolkit.bench.fuzz.parties.aggregator import Service, spec
from toolkit.bench.fuzz.parties.frames import Step
from toolkit.bench.fuzz.samples import DEVICE, NONCE, RUN
from toolkit.bench.fuzz.target import Mutate, Parser, Target, check, check_sentence

_BUNDLE = "0" * 64  # digest of the model that the checkpoint belongs to
# Steps of a journal's input; any other is a record too.
_BYTES, _FLIP, _RECORD = 0, 1, 2


def _both_ways(path: Path, read: Callable[[], None]) -> Callable[[bytes], None]:
    """Reads a sealed file as it is, and with the checksum that it should have."""

    def run(data: bytes) -> None:
        path.write_bytes(data)
        read()
        with contextlib.suppress(WireError):
            envelope = decode(data, limit=LARGEST)
            fields = {name: value for name, value in envelope.fields.items() if name != "crc32"}
            write_sealed(path, envelope.kind, fields, envelope.tensors)
            read()

    return run


# --- the aggregator's ---------------------------------------------------------------------------


def _state() -> State:
    ledger = {DEVICE: Entry(2, NONCE, 10, ("first/bias", "first/kernel"))}
    return State(RUN, 0, samples.tensors(random.Random(5)), {}, ledger)


def _write_snapshot(folder: Path) -> None:
    with contextlib.closing(Store(folder, identity_of(spec(folder, "sync")))) as store:
        store.snapshot(_state())


def _open_snapshot(folder: Path) -> Parser:
    def read() -> None:
        check_state(folder)
        with contextlib.closing(Store(folder, identity_of(spec(folder, "sync")))) as store:
            try:
                state = store.load()
            except StoreError as error:
                check_sentence(error)
                return
        assert state is not None
        check(isinstance(state.run, str) and type(state.round) is int, "run or round is no such.")
        for name, entry in state.ledger.items():
            good = isinstance(name, str) and isinstance(entry.nonce, str)
            check(good and type(entry.round) is int, "the ledger holds what is no entry.")

    return Parser(_both_ways(folder / SNAPSHOT, read))


def _snapshot_seeds() -> list[bytes]:
    return [_written(_write_snapshot, SNAPSHOT)]


def _open_journal(folder: Path) -> Parser:
    """The steps of an input are records, bytes behind them, or a byte that is flipped."""

    def run(data: bytes) -> None:
        steps = frames.split(data)
        for old in folder.iterdir():
            old.unlink()
        with contextlib.closing(Store(folder, identity_of(spec(folder, "sync")))) as store:
            store.snapshot(_state())
            for step in steps:
                if step.what not in (_BYTES, _FLIP) and step.payload:
                    store.append(step.payload)
        (journal,) = folder.glob("journal-*")
        written = bytearray(journal.read_bytes())
        for step in steps:
            if step.what == _BYTES:
                written += step.payload
            elif step.what == _FLIP:
                written[int.from_bytes(step.payload[:3], "little") % len(written)] ^= 1
        journal.write_bytes(written)
        check_state(folder)
        with contextlib.suppress(StoreError):
            service = Service(spec(folder, "sync"), MemoryBroker(), lambda: 0.0)
            try:
                service.poll()
                service.check()
            finally:
                service.stop()

    return Parser(run)


def _journal_seeds() -> list[bytes]:
    rng = random.Random(6)
    records = [Step(_RECORD, to_bytes(samples.update(rng, device=f"pi-{k}"))) for k in range(4)]
    return [frames.join(records), frames.join([*records[:2], Step(_BYTES, bytes(20))])]


def _journal_mutator(_: list[bytes]) -> Mutate:
    def invent(rng: random.Random) -> Step:
        what = rng.choice((_RECORD, _RECORD, _RECORD, _BYTES, _FLIP))
        odd = rng.choice((0.0, 0.5))
        payload = rng.randbytes(3) if what == _FLIP else to_bytes(samples.update(rng, odd=odd))
        return Step(what, payload)

    return lambda rng, data: frames.mutate(rng, data, invent)


# --- a device's ---------------------------------------------------------------------------------


def _open_checkpoint(folder: Path) -> Parser:
    def read() -> None:
        try:
            found = Checkpoints(folder, device=DEVICE, bundle=_BUNDLE).load()
        except CheckpointError as error:
            check_sentence(error)
            return
        assert found is not None
        good = isinstance(found.run, str) and type(found.round) is int
        check(good and type(found.steps_done) is int, "run, round or steps are no such.")

    return Parser(_both_ways(folder / FILE, read))


def _checkpoint_seeds() -> list[bytes]:
    rng = random.Random(7)

    def write(folder: Path) -> None:
        Checkpoints(folder, device=DEVICE, bundle=_BUNDLE).save(
            Checkpoint(
                run=RUN,
                round=3,
                steps_done=7,
                learner={"model/step": np.array(7, np.int64)},
                base=samples.tensors(rng),
                outbox=to_bytes(samples.update(rng)),
            )
        )

    return [_written(write, FILE)]


def _written(write: Callable[[Path], None], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / name).read_bytes()


TARGETS = (
    Target("snapshot", "the aggregator's snapshot", _snapshot_seeds, _open_snapshot),
    Target(
        "journal",
        "the aggregator's journal, and the service that replays it",
        _journal_seeds,
        _open_journal,
        mutator=_journal_mutator,
    ),
    Target("checkpoint", "a device's checkpoint", _checkpoint_seeds, _open_checkpoint),
)
