"""The cells of a comparison, and about how long they take."""

from __future__ import annotations

from toolkit.experiment.cell import BATCH, HETEROGENEOUS, HOMOGENEOUS, ISOLATED, Engine
from toolkit.experiment.compare.pair import ComparedPair
from toolkit.experiment.supervised.cell import (
    NPZ,
    SHARE_FIRST,
    TWO_LOSS,
    SupervisedCell,
    SupervisedOptions,
    plan,
)

LEAST_EXAMPLES, MOST_EXAMPLES = 640, 2_000  # of each device in a round; otherwise all there are
CURVE_POINTS = 10
# From here on TensorFlow's own convolutions pay; below, its calls take longer than the step.
LARGE_STEP = 3_000_000  # operations for an example
# For the estimate, as measured on one core of a PC (make and start: for each process).
_NANOSECONDS_PER_OPERATION = 0.13
_CALL_SECONDS = {"tf": 0.002, "tflite": 0.0003}
_START_SECONDS = {"tf": 12.0, "tflite": 25.0}
_ROUND_SECONDS = 0.03  # of a device: checkpoint, messages, validation


def comparison_options(pair: ComparedPair, rounds: int) -> SupervisedOptions:
    """Returns the options of all cells; the engine is the faster one for these networks."""
    engine: Engine = "tf" if pair.largest_step > LARGE_STEP else "tflite"
    return SupervisedOptions(
        task=NPZ,
        rounds=rounds,
        examples_per_round=min(MOST_EXAMPLES, max(LEAST_EXAMPLES, pair.examples)),
        engine=engine,
        test_every=max(1, rounds // CURVE_POINTS),
        weak_model=pair.weak,
        strong_model=pair.strong,
    )


def comparison_cells(
    options: SupervisedOptions, *, weak_fraction: float, seeds: int, share_first: bool
) -> list[SupervisedCell]:
    """Returns isolated, homogeneous, share-first (unless left out) and two-loss, seed by seed.

    The control of both devices is the network alone that the user gave.
    """
    fleets = [SHARE_FIRST, TWO_LOSS] if share_first else [TWO_LOSS]
    asked = [([ISOLATED, HOMOGENEOUS], [SHARE_FIRST]), ([HETEROGENEOUS], fleets)]
    return [
        cell
        for seed in range(seeds)
        for settings, topologies in asked
        for cell in plan(
            options,
            settings=settings,
            topologies=topologies,
            weak_fractions=[weak_fraction],
            seeds=[seed],
        )
    ]


def expected_seconds(
    cells: list[SupervisedCell], operations: tuple[int, int], *, jobs: int
) -> float:
    """Returns about how long the cells take in so many processes, each with a free core."""
    seconds = 0.0
    for cell in cells:
        options = cell.options
        for device in cell.devices:
            weak, strong = operations
            complex_ = strong + weak if cell.topology == TWO_LOSS else strong
            work = BATCH * (weak if cell.branch(device) == "lightweight" else complex_)
            step = _CALL_SECONDS[options.engine] + 1e-9 * _NANOSECONDS_PER_OPERATION * work
            seconds += options.rounds * (options.steps * step + _ROUND_SECONDS)
    return _START_SECONDS[cells[0].options.engine] + seconds / max(1, min(jobs, len(cells)))
