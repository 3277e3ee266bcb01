"""Benchmarks of one device: its steps, its memory, its players."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from profiles.profile import BranchKind
from toolkit import zoo
from toolkit.commands.bench.reporting import (
    FOLDER,
    MiniBatches,
    Names,
    Out,
    Processes,
    Threads,
    at_work,
    bench,
    show,
)


@bench.command("step")
def bench_step(
    out: Out = FOLDER / "step.json",
    branch: Names = None,
    steps: Annotated[int, typer.Option(help="Timed steps in each process.", min=1)] = 30,
    rounds: Processes = 3,
    threads: Threads = 1,
    flex_python: Annotated[
        Path | None,
        typer.Option(help="Python of an environment with TensorFlow ≤ 2.18.1, which runs Flex."),
    ] = None,
    make_flex: Annotated[
        bool, typer.Option(help="Make such an environment in .venv-flex if there is none.")
    ] = False,
    torch_python: Annotated[
        Path | None, typer.Option(help="Python of an environment with torch and numpy.")
    ] = None,
    breakdown: Annotated[
        bool, typer.Option(help="Time every operation of the step alone as well.")
    ] = False,
) -> None:
    """Time a training step: TensorFlow, PyTorch, Flex, and builtin-only in each installed runtime.

    Ratios are within a round, in which every contestant runs in a fresh process of its own.
    """
    with at_work(out) as progress:
        from toolkit.bench.step.benchmark import run_bench, tables

        report = run_bench(
            names=branch or [],
            steps=steps,
            rounds=rounds,
            threads=threads,
            flex_python=flex_python,
            make_flex=make_flex,
            torch_python=torch_python,
            breakdown=breakdown,
            progress=progress,
        )
    show(report, tables, out)


@bench.command("frozen")
def bench_frozen(
    out: Out = FOLDER / "frozen.json",
    steps: Annotated[int, typer.Option(help="Timed steps in each process.", min=1)] = 30,
    rounds: Processes = 3,
    threads: Threads = 1,
    torch_python: Annotated[
        Path | None, typer.Option(help="Python of an environment with PyTorch.")
    ] = None,
) -> None:
    """Time a training step above a frozen MobileNetV2, beside plain inference of it."""
    with at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from toolkit.bench.frozen.benchmark import run_benchmark, tables

        report = run_benchmark(
            Path(folder),
            steps=steps,
            rounds=rounds,
            threads=threads,
            torch_python=torch_python,
            progress=progress,
        )
    show(report, tables, out)


@bench.command("update")
def bench_update(
    data: Annotated[Path, typer.Option(help="CIFAR-10: the folder of its batches.")],
    out: Out = FOLDER / "update.json",
    plan: Annotated[
        list[str] | None,
        typer.Option(help="Beside `all`; repeat it.", show_default="auto, last:1, last:1 int8"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Of heads and examples.", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Of each device.", min=1)] = 300,
    pretraining: Annotated[int, typer.Option(help="Steps of the backbone.", min=1)] = 1000,
) -> None:
    """Compare update plans of MobileNetV2 on cats and dogs with a full update; goes on if stopped.

    The backbone is trained here, on the other eight classes of CIFAR-10.
    """
    folder = out.with_suffix("")
    with at_work(folder / "learnt.jsonl") as progress:
        from toolkit.bench.update.benchmark import PLANS, run_bench, tables

        report = run_bench(
            folder,
            data=data,
            plans=["all", *plan] if plan else PLANS,
            seeds=seeds,
            steps=steps,
            pretraining=pretraining,
            progress=progress,
        )
    show(report, tables, out)


@bench.command("models")
def bench_models(
    out: Out = FOLDER / "models.jsonl",
    family: Annotated[
        list[str] | None, typer.Option(help="Only this network of keras.applications; repeat it.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Examples in a step.", min=1)] = 8,
    steps: Annotated[int, typer.Option(help="Timed steps.", min=1)] = 5,
) -> None:
    """Export the families of keras.applications, full and head only; a second run goes on."""
    with at_work(out) as progress:
        from toolkit.bench.models.benchmark import run_bench, tables
        from toolkit.bench.models.families import FAMILIES

        results = run_bench(
            families=family or list(FAMILIES),
            batch=batch,
            steps=steps,
            lines=out,
            progress=progress,
        )
    for table in tables(results):
        Console().print(table)
    typer.echo(f"every number is in {out}")


@bench.command("replay")
def bench_replay(
    out: Out = FOLDER / "replay.json",
    frames: Annotated[int, typer.Option(help="Of each game, for the codecs.", min=100)] = 3000,
    steps: Annotated[int, typer.Option(help="In a device's replay.", min=100)] = 100_000,
    batches: Annotated[int, typer.Option(help="Sampled and trained.", min=10)] = 60,
    on_disk: Annotated[bool, typer.Option(help="Keep the replay on disk as well.")] = False,
) -> None:
    """Measure a replay: what frames take compressed, how fast it samples, a device's memory."""
    with at_work(out) as progress:
        from toolkit.bench.playing.replay import run_bench, tables

        report = run_bench(
            frames=frames, steps=steps, batches=batches, on_disk=on_disk, progress=progress
        )
    show(report, tables, out)


@bench.command("caps")
def bench_caps(
    out: Out = FOLDER / "caps.json",
    profile: Annotated[
        list[str] | None,
        typer.Option(help="Only these profiles; may be repeated.", show_default="all shipped"),
    ] = None,
    branch: Names = None,
    rounds: Annotated[int, typer.Option(help="That each device runs.", min=1)] = 3,
    steps: MiniBatches = 20,
) -> None:
    """Run every zoo branch under every profile's memory cap, or show that it is refused."""
    with at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from profiles import profile_names
        from toolkit.bench.caps import run_bench, tables

        report = run_bench(
            Path(folder),
            profiles=profile or profile_names(),
            names=branch or [],
            rounds=rounds,
            steps=steps,
            progress=progress,
        )
    show(report, tables, out)


@bench.command("rl")
def bench_rl(
    out: Out = FOLDER / "rl.json",
    task: Annotated[zoo.PlayedTask, typer.Option()] = "atari",
    game: Annotated[str | None, typer.Option(help="Of the task.", show_default="breakout")] = None,
    branch: Annotated[BranchKind, typer.Option()] = "lightweight",
    warm_up: Annotated[
        int, typer.Option(help="Steps in the replay before the clock starts.", min=32)
    ] = 1_000,
    steps: Annotated[int, typer.Option(help="Timed in each process.", min=1)] = 200,
    rounds: Processes = 3,
    threads: Threads = 1,
) -> None:
    """Time a player that trains: ours, the same with Keras' loops, and with tf.function.

    Ratios are within a round, in which every contestant runs in a fresh process of its own.
    """
    with at_work(out) as progress:
        from toolkit.bench.playing.benchmark import run_bench, tables

        report = run_bench(
            task=task,
            game=game,
            branch=branch,
            warm_up=warm_up,
            steps=steps,
            rounds=rounds,
            threads=threads,
            progress=progress,
        )
    show(report, tables, out)
