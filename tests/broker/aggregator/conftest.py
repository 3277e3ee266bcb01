"""Starts aggregators on a broker in memory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.aggregator.build import AggregatorSpec, build_aggregator
from broker.aggregator.storage.store import Identity
from broker.log import Log
from broker.merging.bounds import UNBOUNDED, Bounds
from broker.merging.coordinator import Settings, State
from broker.merging.merge import MergeRule
from broker.merging.optimizers import parse_optimizer
from broker.transport.channel import Channel
from broker.transport.in_memory import MemoryBroker
from broker.transport.transport import Will
from tests.broker.aggregator.world import (
    DEADLINE,
    WHOLE,
    Brittle,
    Clock,
    Fleet,
    Start,
    Unhurried,
    ones,
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts an aggregator, or starts it again from the folder of another one."""
    stacks: list[contextlib.ExitStack] = []

    def begin(
        mode: str = "sync",
        merge: str = "mean",
        *,
        memory: MemoryBroker | None = None,
        state: State | None = None,
        downlink: str = "float32",
        bounds: Bounds = UNBOUNDED,
        optimizer: str | None = None,
        folder: str = "state",
        **more: Any,
    ) -> Fleet:
        memory = memory or MemoryBroker()
        defaults: dict[str, Any] = {"deadline_seconds": DEADLINE, "staleness": "none"}
        settings = Settings(
            mode=mode,
            merge=MergeRule(merge, bounds=bounds),
            optimizer=parse_optimizer(optimizer, "delta"),
            **defaults | more,
        )
        spec = AggregatorSpec(
            fleet="greenhouse",
            known=WHOLE,
            start=ones(0.0, WHOLE),
            settings=settings,
            folder=tmp_path / folder,
            downlink=downlink,
            run="run-1",
        )
        stores: list[Brittle] = []
        transports: list[Unhurried] = []
        clock, log, stack = Clock(), io.StringIO(), contextlib.ExitStack()
        stacks.append(stack)

        def open_store(folder: Path, identity: Identity) -> Brittle:
            store = Brittle(folder, identity)
            if state is not None and store.load() is None:
                store.snapshot(state)
            stores.append(store)
            return store

        def open_channel(
            *, client_id: str, subscriptions: Sequence[str], will: Will | None, limit: int
        ) -> Channel:
            transport = Unhurried(
                memory, client_id=client_id, subscriptions=subscriptions, will=will
            )
            transport.clock = clock
            transports.append(transport)
            return Channel(transport, limit=limit, held_limit=2**24)

        aggregator = build_aggregator(
            spec,
            open_channel,
            stack,
            log=Log(log, as_json=True),
            open_store=open_store,
            clock=clock,
        )
        (store,), (transport,) = stores, transports
        return Fleet(spec.folder, memory, settings, aggregator, transport, store, clock, log, stack)

    yield begin
    for stack in stacks:
        stack.close()
