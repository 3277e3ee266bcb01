"""Times every formulation of a branch's layers on this device and records the fastest.

    python -m firmware_sim.tune CANDIDATES [--runtime NAME] [--threads N] [--rounds N]
        [--out tuning.json]

`toolkit candidates` makes the folder, `toolkit export --tuning` reads the file. Neither
TensorFlow nor anything else that a device does not have is needed here. All candidates of a layer
run alternately, so that other load on the device affects them equally. The memory needed is that of
all formulations of the largest layer together.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.bundle.reader import file_digest
from firmware_sim.errors import TuneError
from firmware_sim.probe import random_input
from firmware_sim.training.runtime import Model, choose_runtime, runtime_version
from profiles.errors import StemshareError

FORMAT = 1  # of the index and of the file that is written
INDEX = "index.json"
SET = "set"  # the signature that takes the kernel; every other one is a candidate
LEAST_ROUNDS = 7  # the median of fewer is not reliable
WARM_UPS = 2


@dataclass(frozen=True)
class LayerCandidates:
    """One layer: its model, and the formulation that each signature is."""

    name: str
    model: Path
    choices: Mapping[str, Mapping[str, Any]]  # by signature: formulation, part_bytes


@dataclass(frozen=True)
class Index:
    """A folder of candidates, as `toolkit candidates` wrote it."""

    batch: int
    layers: tuple[LayerCandidates, ...]


def read_index(folder: Path) -> Index:
    """Reads the index of a folder; raises `TuneError` if a file is damaged."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except OSError as error:
        raise TuneError(
            f"{folder} holds no candidates ({error.strerror}: {INDEX}); "
            "make them with `toolkit candidates`."
        ) from error
    except ValueError as error:
        raise TuneError(f"{path} is not JSON; copy the folder again.") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise TuneError(f"{path} is not of format {FORMAT}; make the candidates again.")
    try:
        return Index(index["batch"], tuple(_layer(folder, entry) for entry in index["layers"]))
    except (KeyError, TypeError) as error:
        raise TuneError(f"{path} lacks something ({error}); make the candidates again.") from error


def _layer(folder: Path, entry: Mapping[str, Any]) -> LayerCandidates:
    model = folder / Path(entry["file"]).name
    try:
        found = file_digest(model)
    except OSError as error:
        raise TuneError(f"{model} cannot be read ({error.strerror}).") from error
    if found != entry["sha256"]:
        raise TuneError(f"{model} is damaged, for its sha256 differs; copy the folder again.")
    return LayerCandidates(entry["layer"], model, entry["choices"])


def time_layer(
    layer: LayerCandidates, *, runtime: str, threads: int, rounds: int
) -> dict[str, float]:
    """Returns the median seconds of each candidate, by its signature."""
    rng = np.random.default_rng(0)
    model = Model(layer.model, runtime=runtime, threads=threads)
    for name, spec in model.inputs(SET).items():
        model.call(SET, **{name: random_input(rng, spec)})
    names = list(layer.choices)
    inputs = {n: random_input(rng, spec) for n, spec in model.inputs(names[0]).items()}
    for name in names * WARM_UPS:
        model.call(name, **inputs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        rng.shuffle(names)  # the candidate before leaves its data in the caches
        for name in names:
            begin = time.perf_counter()
            model.call(name, **inputs)
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times[name]) for name in layer.choices}


def tune(
    index: Index,
    *,
    runtime: str | None,
    threads: int,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Returns the content of a tuning file: all times, and the fastest candidate of each layer."""
    chosen_runtime = choose_runtime(runtime)
    layers = {}
    for number, layer in enumerate(index.layers):
        medians = time_layer(layer, runtime=chosen_runtime, threads=threads, rounds=rounds)
        fastest, slowest = min(medians, key=medians.__getitem__), max(medians.values())
        layers[layer.name] = {
            **layer.choices[fastest],
            "seconds": {name: float(f"{seconds:.4g}") for name, seconds in medians.items()},
        }
        say(
            f"{number + 1}/{len(index.layers)} {layer.name}: {fastest}, "
            f"{medians[fastest] * 1e3:.2f} ms, "
            f"{slowest / medians[fastest]:.1f} times as fast as the slowest of {len(medians)}"
        )
    return {
        "format": FORMAT,
        "runtime": chosen_runtime,
        "runtime_version": runtime_version(chosen_runtime),
        "threads": threads,
        "machine": platform.machine(),
        "batch": index.batch,
        "layers": layers,
    }


def main(argv: Sequence[str] | None = None) -> None:
    # Here and not above: code that only reads candidates needs no safetensors.
    from broker.durable import write_file

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("candidates", type=Path, help="folder that `toolkit candidates` wrote")
    parser.add_argument("--runtime", help="by default the preferred one that is installed")
    parser.add_argument("--threads", type=int, default=1, help="threads of the profile (default 1)")
    parser.add_argument(
        "--rounds", type=int, default=9, help="timings of each candidate (default 9)"
    )
    parser.add_argument("--out", type=Path, default=Path("tuning.json"))
    args = parser.parse_args(argv)
    if args.rounds < LEAST_ROUNDS or args.threads < 1:
        parser.error(f"--rounds is at least {LEAST_ROUNDS}, --threads at least 1")
    try:
        found = tune(
            read_index(args.candidates),
            runtime=args.runtime,
            threads=args.threads,
            rounds=args.rounds,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        write_file(args.out, (json.dumps(found, indent=1) + "\n").encode())
    except StemshareError as error:
        sys.exit(error.report)
    except OSError as error:
        sys.exit(f"error: cannot write {args.out} ({error.strerror}).")


if __name__ == "__main__":
    main()
