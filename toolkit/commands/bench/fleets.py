"""Benchmarks of fleets, of their updates and parsers, and of a device with a stream."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from toolkit import zoo
from toolkit.commands.bench.reporting import (
    FOLDER,
    MiniBatches,
    Out,
    Processes,
    at_work,
    bench,
    show,
)


@bench.command("fleet")
def bench_fleet(
    out: Out = FOLDER / "fleet.json",
    repetitions: Annotated[int, typer.Option(help="Of the path's timings.", min=1)] = 9,
    devices: Annotated[int, typer.Option(help="Simulated, in one round.", min=2)] = 200,
    rounds: Annotated[int, typer.Option(help="Over which memory is watched.", min=10)] = 1000,
) -> None:
    """Measure a fleet's cost: codec, checks and merge, a round of many devices, memory."""
    with at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from toolkit.bench.fleet import run_bench, tables

        report = run_bench(
            Path(folder),
            repetitions=repetitions,
            devices=devices,
            rounds=rounds,
            progress=progress,
        )
    show(report, tables, out)


@bench.command("quantisation")
def bench_quantisation(
    out: Out = FOLDER / "quantisation.json",
    task: Annotated[zoo.SupervisedTask, typer.Option()] = "digits",
    data: Annotated[Path | None, typer.Option(help="cifar10: the folder of its batches.")] = None,
    seeds: Annotated[int, typer.Option(help="Orders of the data.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="Merges.", min=1)] = 20,
    steps: MiniBatches = 20,
    learning_rate: Annotated[
        float | None, typer.Option(help="Instead of the branch's own.", min=0.0)
    ] = None,
    fleets: Annotated[int, typer.Option(help="That run at once.", min=1)] = 1,
) -> None:
    """Compare what a fleet learns with float32, float16, int8 and int4 updates, and their bytes."""
    with at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from broker.protocol.quantisation import ENCODINGS
        from toolkit.bench.quantisation import run_bench, tables

        report = run_bench(
            Path(folder),
            task=task,
            data=data,
            encodings=ENCODINGS,
            seeds=range(seeds),
            rounds=rounds,
            steps=steps,
            progress=progress,
            learning_rate=learning_rate,
            fleets=fleets,
        )
    show(report, tables, out)


@bench.command("attacks")
def bench_attacks(
    out: Out = FOLDER / "attacks.json",
    attack: Annotated[
        list[str] | None,
        typer.Option(help="Only these attacks; may be repeated.", show_default="all"),
    ] = None,
    defence: Annotated[
        list[str] | None,
        typer.Option(help="Beside off and default; may be repeated.", show_default="all"),
    ] = None,
    liars: Annotated[
        list[int] | None,
        typer.Option(help="Lying devices of ten; may be repeated.", show_default="1 and 2"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Of data, start and attackers.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(help="Merges.", min=1)] = 20,
    steps: Annotated[int, typer.Option(help="Mini-batches in a round.", min=1)] = 8,
    learning_rate: Annotated[
        float, typer.Option(help="Ten times the branch's own, so that 20 rounds are enough.")
    ] = 0.01,
) -> None:
    """Measure what lying devices cost a fleet on digits, attack by attack, defence by defence.

    A bench that was stopped goes on where it was: the same command reads what is done already.
    """
    with at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from toolkit.bench.attacks.attackers import ATTACKS
        from toolkit.bench.attacks.run import DEFENCES, run_bench, tables

        report = run_bench(
            Path(folder),
            out.with_suffix(".jsonl"),
            attacks=attack or list(ATTACKS),
            defences=defence or list(DEFENCES),
            liars=liars or [1, 2],
            seeds=range(seeds),
            rounds=rounds,
            steps=steps,
            learning_rate=learning_rate,
            progress=progress,
        )
    show(report, tables, out)


@bench.command("fuzz")
def bench_fuzz(
    out: Out = FOLDER / "fuzz.json",
    seconds: Annotated[float, typer.Option(help="For all targets together.", min=1)] = 600,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Only these targets; may be repeated.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the changes.", min=0)] = 0,
    corpus: Annotated[
        Path, typer.Option(help="Folder with inputs for each target, beside the built-in ones.")
    ] = Path("tests/fuzz/corpus"),
    grow: Annotated[
        bool, typer.Option(help="Add small inputs to the corpus that reach something new.")
    ] = False,
    reproduce: Annotated[
        Path | None, typer.Option(help="Run this one input of the one --target, and no others.")
    ] = None,
) -> None:
    """Feed damaged input to every parser, and to an aggregator and a device in memory.

    Guided by coverage (atheris). A failure is an exception that is not the parser's own, a party
    that ends, a malformed θ_shared that a device adopts, a hang, or growing memory.
    """
    with at_work(out) as progress:
        from toolkit.bench.fuzz import engine
        from toolkit.bench.fuzz.targets import chosen

        targets = chosen(target or [])
        if reproduce is not None:
            engine.reproduce(targets, reproduce)
            return
        report = engine.run_bench(
            targets,
            seconds=seconds,
            seed=seed,
            corpus=corpus,
            failures=out.with_suffix(""),
            progress=progress,
            grow=grow,
        )
    show(report, engine.tables, out)
    if any(ran["failures"] for ran in report["targets"]):
        raise typer.Exit(1)


@bench.command("stream")
def bench_stream(
    out: Out = FOLDER / "stream.json",
    kills: Annotated[int, typer.Option(help="SIGKILLs while examples come in.", min=0)] = 50,
    observations: Annotated[int, typer.Option(help="Of 128×6 float32 windows.", min=1)] = 1_000_000,
    answers: Annotated[int, typer.Option(help="Predictions in each process.", min=100)] = 3_000,
    rounds: Processes = 3,
) -> None:
    """Measure a device that learns from a stream: kills, caps, observations, answers."""
    with at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from toolkit.bench.stream.benchmark import run_bench, tables

        report = run_bench(
            Path(folder),
            kills=kills,
            observations=observations,
            answers=answers,
            rounds=rounds,
            progress=progress,
        )
    show(report, tables, out)
