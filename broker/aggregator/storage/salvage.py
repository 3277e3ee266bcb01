"""Going back to what is whole: only when asked, and with everything that was there kept aside."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from broker.aggregator.storage.check import LONGEST, JournalFound, StateFound, describe, read_state
from broker.aggregator.storage.journal import BEGIN, Journal, create_journal
from broker.aggregator.storage.store import PREVIOUS, SNAPSHOT, Snapshot, write_snapshot
from broker.durable import claim, make_folder, sync_path
from broker.errors import StoreError, WireError
from broker.protocol.messages import Update, from_bytes, to_bytes


@dataclass(frozen=True)
class Plan:
    """What is restored: a snapshot, and the whole records of the journals that continue it."""

    base: Snapshot
    journals: tuple[tuple[int, JournalFound], ...]
    lost: tuple[str, ...]  # what was acknowledged and cannot be restored
    is_exact: bool  # whether this is the newest state, in another form

    def updates(self) -> Iterator[bytes]:
        for generation, journal in self.journals:
            yield from journal.updates(generation)


def plan_salvage(found: StateFound) -> Plan:
    """The newest state that is whole, or `StoreError` if there is none."""
    whole = [snapshot for snapshot in (found.newest, found.previous) if snapshot]
    if not whole:
        raise StoreError(
            f"{found.folder} holds no whole snapshot; restore a backup, or give another --state."
        )
    base = max(whole, key=lambda snapshot: snapshot.generation)
    usable: list[tuple[int, JournalFound]] = []
    lost: list[str] = []
    for generation, journal in sorted(found.journals.items()):
        if generation < base.generation:
            continue
        if generation == base.generation + len(usable) and not lost:
            usable.append((generation, journal))
        elif journal.records:
            lost.append(f"{journal.records} updates of {journal.path.name}")
        lost += journal.lost
    if base is not found.newest and not usable:
        lost.insert(0, f"everything after round {base.state.round}")
    # A synchronous round is merged at the same place again if an update of the next one follows.
    merged_again = base.identity["mode"] == "async" or sum(j.records > 0 for _, j in usable) > 1
    is_exact = not lost and (base is found.newest or merged_again)
    return Plan(base, tuple(usable), tuple(lost), is_exact)


def salvage_state(folder: Path) -> list[str]:
    """Makes a state folder usable again; returns what was restored, kept aside and lost."""
    try:
        lock = claim(folder)
        if lock is None:
            raise StoreError(f"another aggregator is using {folder}.")
        with lock:
            return _salvage(folder, read_state(folder))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({error.strerror}).") from None


def _salvage(folder: Path, found: StateFound) -> list[str]:
    if found.starts:
        return [f"{folder}: nothing to salvage; an aggregator can start with it"]
    plan = plan_salvage(found)
    old = [found.folder / name for name in (SNAPSHOT, PREVIOUS)]
    old = [path for path in old if path.exists()] + [j.path for j in found.journals.values()]
    aside = _keep_aside(folder, old)
    # No snapshot of this folder is continued by a journal of this number, should we be cut off.
    generation = max((plan.base.generation, *found.journals)) + 2
    path = folder / f"journal-{generation}"
    state = plan.base.state
    if not plan.is_exact:  # devices follow a new run by themselves, also those that are ahead
        state = replace(state, run=secrets.token_hex(8))
    kept = 0
    with contextlib.closing(Journal(path, create_journal(path, generation), BEGIN)) as journal:
        for update in plan.updates():
            journal.append(_in_run(state.run, update))
            kept += 1
    sync_path(folder)  # a snapshot without its journal would start, and lack these updates
    restored = Snapshot(plan.base.identity, generation, state)
    write_snapshot(folder / SNAPSHOT, restored)
    for file in old:
        if file.name != SNAPSHOT:
            file.unlink()
    sync_path(folder)
    return [
        f"restored: {describe(restored)}; and {kept} updates that were accepted after it",
        *(f"lost: {what}" for what in plan.lost),
        *(() if plan.lost else ("lost: nothing that was acknowledged",)),
        *(() if plan.is_exact else (f"new run: it was {plan.base.state.run}; devices follow it",)),
        f"kept aside: {aside} has the files as they were",
    ]


def _in_run(run: str, update: bytes) -> bytes:
    """The same update of another run; its tensors stay encoded as they are."""
    try:
        return to_bytes(replace(from_bytes(Update, update, limit=LONGEST), run=run))
    except WireError:  # of another version, which is refused at the start
        return update


def _keep_aside(folder: Path, files: list[Path]) -> Path:
    """Gives every file a second name in a folder of its own; returns that folder."""
    aside = next(p for n in count(1) if not (p := folder / f"damaged-{n}").exists())
    make_folder(aside)
    for file in files:
        try:
            os.link(file, aside / file.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, aside / file.name)
            sync_path(aside / file.name)
    sync_path(aside)
    return aside
