"""Puts together what a device has that learns from a stream."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from broker.log import Log
from broker.transport.options import credentials_in
from firmware_sim.bundle.reader import Bundle
from firmware_sim.bundle.target import Target
from firmware_sim.normalisation import Learnt, normaliser
from firmware_sim.predicting.intake import Intake
from firmware_sim.predicting.predictor import Predictor
from firmware_sim.sources.feeding import Feeding
from firmware_sim.sources.open_source import open_source
from firmware_sim.sources.request import Request
from firmware_sim.store.size import size_for
from firmware_sim.store.spec import ExampleSpec
from firmware_sim.store.store import Store
from firmware_sim.tasks.labelled import check_kind
from firmware_sim.tasks.stream import StreamTask
from firmware_sim.training.limits import Caps, stored_bytes
from firmware_sim.training.runtime import runtime_for


@dataclass(frozen=True, eq=False)
class Stream:
    """What a device that learns from a stream has beside its training."""

    store: Store
    predictor: Predictor
    intake: Intake
    task: StreamTask
    feed: Callable[[], None]  # begins to read the source, if there is one


def open_stream(
    args: argparse.Namespace, bundle: Bundle, caps: Caps, log: Log, stack: ExitStack
) -> Stream:
    """Opens the store of a device and what stands around it; `stack` closes them."""
    target = check_kind(args.task, bundle)
    spec = ExampleSpec(bundle.training_inputs["x"].of_one, target.y, target.classes)
    runtime = runtime_for(bundle, args.runtime)
    normalise = normaliser(args.normalise, spec.x, bundle.manifest.normalisation)
    predictor = Predictor(
        bundle.predict, target, normalise.apply, prefix=bundle.prefix, runtime=runtime
    )
    store = Store(
        store_folder(args),
        spec,
        size_for(spec.size, caps.storage_bytes - stored_bytes(bundle.manifest)),
        keep=args.store_keep,
        seed=args.seed,
        label_seconds=3600 * args.label_hours,
        learnt=normalise if isinstance(normalise, Learnt) else None,
    )
    stack.callback(store.close)
    intake = Intake(store, predictor, target)
    feedings: list[Feeding] = []
    source = open_source(args.source, _request(args, spec, target, log)) if args.source else None
    if source is not None:
        stack.callback(source.close)

    def feed() -> None:
        if source is not None:
            feedings.append(Feeding(source, intake, log))
            stack.callback(feedings[0].close)

    def check() -> None:
        for feeding in feedings:
            feeding.check()

    task = StreamTask(
        store,
        intake,
        target,
        normalise,
        batch=bundle.manifest.batch_size,
        seed=args.seed,
        quantile=args.anomaly_quantile,
        check=check,
    )
    return Stream(store, predictor, intake, task, feed)


def store_folder(args: argparse.Namespace) -> Path:
    """Examples outlive the model that a pack brings, so they are where the user said."""
    folder: Path = args.state if args.pack is None else args.state.parent
    return folder


def _request(args: argparse.Namespace, spec: ExampleSpec, target: Target, log: Log) -> Request:
    return Request(
        x=spec.x,
        y=spec.y,
        outputs=target.classes or None,
        settings=args.source_config,
        device=args.id,
        memory=store_folder(args),
        alone=args.isolated,
        broker=args.broker,
        credentials=credentials_in(args),
        log=log,
    )
