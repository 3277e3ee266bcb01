"""Builds an aggregator: the same for the program, for fleets in one process and for tests.

Order: state folder and snapshot → contract → coordinator → journal → channel → service.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.aggregator.contract import Contract
from broker.aggregator.epochs import Epochs
from broker.aggregator.membership import Members
from broker.aggregator.publisher import announcement
from broker.aggregator.service import Aggregator
from broker.aggregator.signing import Signing
from broker.aggregator.storage.store import Identity, Store
from broker.errors import StoreError
from broker.log import Log
from broker.merging.asynchronous import Asynchronous
from broker.merging.coordinator import Coordinator, Settings, State
from broker.merging.synchronous import Synchronous
from broker.protocol.messages import Refused, to_bytes
from broker.protocol.slice import Slice, Tensors
from broker.protocol.topics import AGGREGATOR, Topics
from broker.transport.channel import OpenChannel
from broker.transport.transport import Will

COORDINATORS: dict[str, type[Coordinator]] = {"sync": Synchronous, "async": Asynchronous}


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregatorSpec:
    """What the aggregator of a fleet is, independent of how it reaches its broker."""

    fleet: str
    known: Slice  # the union of the slices of all kinds of devices
    start: Tensors  # θ_shared at the start of a new run
    settings: Settings
    folder: Path  # where it keeps its state
    start_from: str | None = None  # where the user took it from; None: from the slices
    merge_because: str = "it is given"  # why it merges by this rule, for the log
    exchange: str = "delta"
    downlink: str = "float32"  # how θ_shared is sent
    run: str | None = None  # the name of a new run; None: a random one
    members: Path | None = None  # the file with the names of its devices; None: all may join
    signing: Signing | None = None
    scraped: bool = False  # whether it also reads what devices publish about themselves


def identity_of(spec: AggregatorSpec) -> Identity:
    """Returns what must be the same for the state in a folder to be continued."""
    settings = spec.settings
    return Identity(
        fleet=spec.fleet,
        fingerprint=spec.known.fingerprint,
        mode=settings.mode,
        exchange=spec.exchange,
        optimizer=settings.optimizer.kind,
        merging=COORDINATORS[settings.mode].replay_identity(settings),
    )


def build_aggregator(
    spec: AggregatorSpec,
    open_channel: OpenChannel,
    stack: contextlib.ExitStack,
    *,
    log: Log,
    open_store: Callable[[Path, Identity], Store] = Store,
    clock: Callable[[], float] = time.monotonic,
    alive: Callable[[], None] = lambda: None,
) -> Aggregator:
    """Returns an aggregator that continues the run in its folder, or starts a new one there.

    `stack` closes its channel and its store.
    """
    settings, topics = spec.settings, Topics(spec.fleet)
    log.event(
        "merging",
        merge=settings.merge.name,
        because=spec.merge_because,
        optimizer=str(settings.optimizer),
    )
    store = stack.enter_context(contextlib.closing(open_store(spec.folder, identity_of(spec))))
    state = store.load()
    if spec.start_from is not None:
        if state is None:
            log.event("starting", values=spec.start_from)
        else:
            log.event("start_not_used", because=f"{spec.folder} holds a run, which goes on")
    if state is None:
        run = secrets.token_hex(8) if spec.run is None else spec.run
        state = State(run, 0, spec.start, settings.optimizer.initial(spec.start))
        store.snapshot(state)
    contract = Contract.of(spec.known, exchange=spec.exchange, run=state.run)
    coordinator = COORDINATORS[settings.mode](settings, state, clock())
    _replay(store, contract, coordinator, log, clock())
    epochs = Epochs(spec.folder, secrets.token_hex(8))
    gone = announcement("offline", contract, settings, epochs, round=state.round)
    signer = spec.signing.signer if spec.signing else None
    will = to_bytes(gone, topic=topics.aggregator_state, signer=signer)
    of_devices = (topics.metrics("+"),)
    channel = open_channel(
        client_id=topics.client_id(AGGREGATOR),
        subscriptions=(*topics.of_aggregator(), *(of_devices if spec.scraped else ())),
        will=Will(topics.aggregator_state, will),
        limit=contract.largest_message,
    )
    stack.enter_context(contextlib.closing(channel))
    return Aggregator(
        contract=contract,
        coordinator=coordinator,
        store=store,
        channel=channel,
        topics=topics,
        epochs=epochs,
        log=log,
        downlink=spec.downlink,
        members=Members(spec.members) if spec.members else None,
        signing=spec.signing,
        clock=clock,
        alive=alive,
    )


def _replay(
    store: Store, contract: Contract, coordinator: Coordinator, log: Log, now: float
) -> None:
    """Gives the coordinator the updates of the journal, which were accepted since the snapshot."""
    replayed = 0
    for payload in store.journal():
        try:
            update = contract.check_record(payload)
        except Refused:
            raise StoreError("the journal was written by another version.") from None
        if update.round > coordinator.state.round and not coordinator.state_is_complete:
            coordinator.close(now)  # a salvaged journal holds several rounds
        try:
            coordinator.accept(update)
        except Refused as refused:
            raise StoreError(f"the journal does not fit its snapshot: {refused}") from None
        replayed += 1
    coordinator.limited()  # was counted when it happened
    if store.cut_bytes:
        log.event("journal_cut", bytes=store.cut_bytes)
    if replayed:
        log.event("replayed", updates=replayed, round=coordinator.state.round)
