"""`toolkit bench attacks`: what lying devices cost a fleet, whatever stands against them.

Every case is a fleet of ten devices. Fleets of the same seed start from the same weights and have
the same data in the same order, so accuracy lost is a difference within a seed, in points, against
the fleet in which nobody lies and nothing is defended.

Results are written case by case: a bench that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from rich.table import Table

from broker.durable import sync_file
from broker.merging.bounds import UNBOUNDED
from broker.merging.merge import MergeRule
from toolkit.bench.attacks.attackers import ATTACKS, NOBODY
from toolkit.bench.attacks.fleet import DEVICES, SPLITS, Case, Trainer
from toolkit.errors import ToolkitError

Progress = Callable[[str], None]
# Just above the updates of honest devices in the first rounds. An operator would have to know it.
CLIP_NORM = 2.5
OFF, DEFAULT = "off", "default"
DEFENCES: dict[str, Callable[[int], MergeRule]] = {  # by the number of liars to be borne
    OFF: lambda liars: MergeRule("samples", bounds=UNBOUNDED),
    DEFAULT: lambda liars: MergeRule("samples"),
    "clip norm": lambda liars: MergeRule("samples", bounds=replace(UNBOUNDED, clip_norm=CLIP_NORM)),
    "median": lambda liars: MergeRule("median"),
    "trimmed mean": lambda liars: MergeRule("trimmed-mean", byzantine=max(1, liars)),
    "multi-Krum": lambda liars: MergeRule("multi-krum", byzantine=max(1, liars)),
}
EQUAL = "equal"


@dataclass(frozen=True)
class Row:
    """One line of a table: who lies, and how the data are divided."""

    attack: str
    liars: int
    split: str = EQUAL

    def key(self, defence: str, seed: int) -> str:
        return f"{self.attack}, {self.liars} of {DEVICES}, {self.split}, {defence}, seed {seed}"


def rows(attacks: Sequence[str], liars: Sequence[int]) -> list[Row]:
    """Honest fleets first, then every attack with every number of liars."""
    honest = [Row(NOBODY, 0, split) for split in SPLITS]
    return honest + [Row(attack, count) for attack in attacks for count in liars]


def run_bench(
    folder: Path,
    results: Path,
    *,
    attacks: Sequence[str],
    defences: Sequence[str],
    liars: Sequence[int],
    seeds: Sequence[int],
    rounds: int,
    steps: int,
    learning_rate: float,
    progress: Progress,
) -> dict[str, Any]:
    """Runs what `results` does not have yet, one seed after the other."""
    for name, chosen, known in (("attack", attacks, ATTACKS), ("defence", defences, DEFENCES)):
        if wrong := [one for one in chosen if one not in known]:
            raise ToolkitError(f"there is no {name} {wrong[0]!r}; there are {', '.join(known)}.")
    defences = list(dict.fromkeys((OFF, DEFAULT, *defences)))
    settings = {"rounds": rounds, "steps": steps, "learning_rate": learning_rate}
    found = _read(results, settings)
    cases = [
        (row, defence, seed)
        for seed in seeds
        for row in rows(attacks, liars)
        for defence in defences
        if row.split == EQUAL or defence in (OFF, DEFAULT)
    ]
    todo = [case for case in cases if case[0].key(*case[1:]) not in found]
    if todo:
        progress("converting the branch")
        trainer = Trainer(folder, rounds=rounds, steps=steps, learning_rate=learning_rate)
        with results.open("ab") as file:
            for number, (row, defence, seed) in enumerate(todo, 1):
                key = row.key(defence, seed)
                progress(f"{number} of {len(todo)}: {key}")
                attack = None if row.attack == NOBODY else row.attack
                case = Case(attack, row.liars, DEFENCES[defence](row.liars), row.split, seed)
                found[key] = trainer.accuracy(case)
                _write(file, {"case": key, "accuracy": found[key]})
    return {
        "machine": platform.processor() or platform.machine(),
        "devices": DEVICES,
        **settings,
        "seeds": list(seeds),
        "clip_norm": CLIP_NORM,
        "accuracy": {row.key(d, s): found[row.key(d, s)] for row, d, s in cases},
        "rows": list(_summaries(cases, found, list(seeds))),
    }


def _read(results: Path, settings: dict[str, Any]) -> dict[str, float]:
    """Returns the accuracy of every case that is done; begins the file if there is none."""
    header = json.dumps({"settings": settings})
    if not results.exists():
        results.write_text(header + "\n", encoding="utf-8")
    lines = results.read_text(encoding="utf-8").split("\n")
    if lines[0] != header:
        raise ToolkitError(
            f"{results} holds results of other settings; give another --out, or remove it."
        )
    if lines[-1]:  # it was stopped while it wrote this line
        results.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    found = map(json.loads, lines[1:-1])
    return {line["case"]: line["accuracy"] for line in found}


def _write(file: BinaryIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line).encode() + b"\n")
    sync_file(file)


def _summaries(
    cases: Sequence[tuple[Row, str, int]], found: dict[str, float], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yields accuracy lost in each row, by defence: mean and standard error over seeds."""
    by_row: dict[Row, dict[str, None]] = {}
    for row, defence, _ in cases:
        by_row.setdefault(row, {})[defence] = None
    for row, defences in by_row.items():
        honest = [found[Row(NOBODY, 0, row.split).key(OFF, seed)] for seed in seeds]
        lost = {}
        for defence in defences:
            reached = [found[row.key(defence, seed)] for seed in seeds]
            pairs = zip(honest, reached, strict=True)
            lost[defence] = _spread([100 * (best - one) for best, one in pairs])
        yield {
            "attack": row.attack,
            "liars": row.liars,
            "split": row.split,
            "honest_accuracy": statistics.mean(honest),
            "lost": lost,
        }


def _spread(differences: Sequence[float]) -> dict[str, float]:
    found = {"mean": statistics.mean(differences)}
    if len(differences) > 1:
        found["standard_error"] = statistics.stdev(differences) / len(differences) ** 0.5
    return found


def tables(report: dict[str, Any]) -> list[Table | str]:
    found = report["rows"]
    names = list(dict.fromkeys(defence for row in found for defence in row["lost"]))
    table = Table("attack", "liars", *names)
    for row in found:
        who = row["attack"] if row["split"] == EQUAL else f"{row['attack']}, data {row['split']}"
        cells = [_shown(row["lost"].get(name)) for name in names]
        table.add_row(who, f"{row['liars']} of {report['devices']}", *cells)
    accuracy = ", ".join(
        f"{row['split']} {row['honest_accuracy']:.1%}" for row in found if not row["liars"]
    )
    return [
        table,
        f"points of accuracy lost on digits, mean ± standard error over {len(report['seeds'])} "
        f"seeds, against the undefended fleet in which nobody lies ({accuracy}); "
        f"{report['rounds']} rounds of {report['steps']} mini-batches, learning rate "
        f"{report['learning_rate']:g}, --clip-norm {report['clip_norm']:g}",
    ]


def _shown(lost: dict[str, float] | None) -> str:
    if lost is None:
        return ""
    mean = f"{lost['mean'] + 0.0:.1f}"
    return f"{mean} ± {lost['standard_error']:.1f}" if "standard_error" in lost else mean
