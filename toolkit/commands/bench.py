"""`toolkit bench …`: each benchmark prints tables and writes every number as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profiles.profile import BranchKind
from toolkit import zoo
from toolkit.terminal import quiet_terminal

bench = typer.Typer(help="Benchmarks; each prints a table and writes JSON.", no_args_is_help=True)
FOLDER = Path("build/bench")
Progress = Callable[[str], None]

Out = Annotated[Path, typer.Option(help="JSON file with every number.")]
Names = Annotated[
    list[str] | None,
    typer.Option(help="Only zoo branches whose name contains this; may be repeated."),
]
Processes = Annotated[int, typer.Option(help="Number of processes per contestant, in turn.", min=1)]
Threads = Annotated[int, typer.Option(help="CPU threads for every contestant.", min=1)]
MiniBatches = Annotated[int, typer.Option(help="Number of mini-batches in a round.", min=1)]


@contextmanager
def _at_work(out: Path) -> Iterator[Progress]:
    """A quiet terminal with a line of progress, and a place for the numbers."""
    with quiet_terminal() as console, console.status("preparing") as status:
        from toolkit.writing import make_folder

        make_folder(out.parent)
        yield status.update


def _show(report: dict[str, Any], tables: Callable[[dict[str, Any]], Any], out: Path) -> None:
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for part in tables(report):
        Console().print(part)
    typer.echo(f"every number is in {out}")


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
    with _at_work(out) as progress:
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
    _show(report, tables, out)


@bench.command("fleet")
def bench_fleet(
    out: Out = FOLDER / "fleet.json",
    repetitions: Annotated[int, typer.Option(help="Of the path's timings.", min=1)] = 9,
    devices: Annotated[int, typer.Option(help="Simulated, in one round.", min=2)] = 200,
    rounds: Annotated[int, typer.Option(help="Over which memory is watched.", min=10)] = 1000,
) -> None:
    """Measure a fleet's cost: codec, checks and merge, a round of many devices, memory."""
    with _at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
        from toolkit.bench.fleet import run_bench, tables

        report = run_bench(
            Path(folder),
            repetitions=repetitions,
            devices=devices,
            rounds=rounds,
            progress=progress,
        )
    _show(report, tables, out)


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
    with _at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
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
    _show(report, tables, out)


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
    with _at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
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
    _show(report, tables, out)


@bench.command("replay")
def bench_replay(
    out: Out = FOLDER / "replay.json",
    frames: Annotated[int, typer.Option(help="Of each game, for the codecs.", min=100)] = 3000,
    steps: Annotated[int, typer.Option(help="In a device's replay.", min=100)] = 100_000,
    batches: Annotated[int, typer.Option(help="Sampled and trained.", min=10)] = 60,
    on_disk: Annotated[bool, typer.Option(help="Keep the replay on disk as well.")] = False,
) -> None:
    """Measure a replay: what frames take compressed, how fast it samples, a device's memory."""
    with _at_work(out) as progress:
        from toolkit.bench.playing.replay import run_bench, tables

        report = run_bench(
            frames=frames, steps=steps, batches=batches, on_disk=on_disk, progress=progress
        )
    _show(report, tables, out)


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
    with _at_work(out) as progress, tempfile.TemporaryDirectory() as folder:
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
    _show(report, tables, out)


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
    with _at_work(out) as progress:
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
    _show(report, tables, out)


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
    with _at_work(out) as progress:
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
    _show(report, engine.tables, out)
    if any(ran["failures"] for ran in report["targets"]):
        raise typer.Exit(1)
