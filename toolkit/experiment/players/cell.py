"""Cells of the study of players (the paper's section 4.2), and the plan of a study.

Planning does no I/O. An isolated device depends neither on the weak device's rate nor on the mode
of a fleet, so its cell is planned once, although several panels of the figure show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, get_args

from firmware_sim.playing.player import game_of
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import (
    ANY,
    DEVICES,
    HOMOGENEOUS,
    ISOLATED,
    POWERFUL,
    SETTINGS,
    WEAK,
    Cell,
    Merging,
    StudyOptions,
    check_known,
)
from toolkit.zoo import PlayedTask

TASKS = get_args(PlayedTask)
SYNC, ASYNC = MODES = ("sync", "async")
SCORE_WINDOW = 25  # test episodes in the mean of a score, as in the paper's curves


@dataclass(frozen=True, kw_only=True)
class PlayerOptions(StudyOptions):
    """What all cells of a study of players have in common; lengths are in steps of a game."""

    engine: str = "tflite"
    steps_per_round: int  # of the powerful device, between two merges
    warm_up: int  # before the first mini-batch, in the first round
    exploration: int  # during which ε decreases
    replay: tuple[int, int]  # capacity beside a lightweight and a complex branch
    test_steps: int  # maximum length of a test episode

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("rounds", "steps_per_round", "warm_up", "exploration", "test_steps"):
            if getattr(self, what) < 1:
                raise ExperimentError(f"{what.replace('_', ' ')} must be at least 1.")
        if min(self.replay) < self.warm_up:
            raise ExperimentError(
                f"a replay of {min(self.replay)} steps does not hold a warm-up of {self.warm_up}."
            )


@dataclass(frozen=True, kw_only=True)
class PlayerCell(Cell):
    """Devices that play `game`; the weak one takes `weak_rate` steps per powerful one's step.

    sync   a round ends for both devices when the powerful one has taken its steps; the weak one
           has then taken `weak_rate` times as many
    async  each device merges after the same number of its own steps, the weak one less often
    """

    resumes: ClassVar[bool] = False  # a replay is too large to be saved after every round
    options_type: ClassVar[type[StudyOptions]] = PlayerOptions

    options: PlayerOptions
    game: str
    mode: str  # sync or async; any in an isolated cell
    weak_rate: float  # 1 in an isolated cell

    @property
    def name(self) -> str:
        fleet = f"{self.game.replace('/', '-')}_{self.setting}_{self.mode}"
        return f"{fleet}_{self.participants}_rate-{self.weak_rate:g}_seed-{self.seed}"

    @property
    def merging(self) -> Merging:
        """Updates have equal weights."""
        asynchronous = self.mode == ASYNC
        merges = sum(map(self.rounds, self.devices)) if asynchronous else self.options.rounds
        return Merging(self.mode, "mean", merges)

    @property
    def environment(self) -> str:
        """The game's name among all environments; raises a TaskError if there is no such game."""
        return game_of(self.options.task, self.game)

    def rate(self, device: str) -> float:
        """Steps of the device per step of the powerful one."""
        return self.weak_rate if device == WEAK else 1.0

    def steps(self, device: str) -> int:
        """The number of mini-batches in a round of the device, each with a step of the game."""
        rate = 1.0 if self.mode == ASYNC else self.rate(device)
        return max(1, round(self.options.steps_per_round * rate))

    def rounds(self, device: str) -> int:
        """The number of rounds of the device; each ends with a test and, in a fleet, a merge."""
        rate = self.rate(device) if self.mode == ASYNC else 1.0
        return max(1, int(self.options.rounds * rate))

    def shares_everything(self) -> bool:
        """Whether all layers are shared, and not only the stem."""
        return self.setting == HOMOGENEOUS

    def replay(self, device: str) -> int:
        """Capacity in steps; in the paper the lightweight branch has a tenth of the other."""
        return self.options.replay[self.branch(device) == "complex"]

    def model_key(self, device: str) -> tuple[object, ...]:
        options = self.options
        network = options.task, self.game, self.branch(device), self.shares_everything()
        return (*network, options.engine, options.learning_rate)


def plan(
    options: PlayerOptions,
    *,
    games: Sequence[str],
    settings: Sequence[str],
    modes: Sequence[str],
    weak_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[PlayerCell]:
    """Returns every distinct cell once, ordered by seed, so that early results can be drawn."""
    check_known("mode", settings, SETTINGS)  # the word of the option --modes
    check_known("coordinator", modes, MODES)  # the word of the option --coordinator
    for rate in weak_rates:
        if not 0 < rate <= 1:
            raise ExperimentError(
                f"the weak device cannot play at {rate:g} of the powerful one's rate: take more "
                "than 0 and at most 1, as 0.25 is."
            )
    cells: dict[PlayerCell, None] = {}
    for seed, game, setting, mode, rate in product(seeds, games, settings, modes, weak_rates):
        cell = PlayerCell(
            options=options,
            game=game,
            setting=setting,
            mode=mode,
            devices=DEVICES,
            weak_rate=rate,
            seed=seed,
        )
        cells |= dict.fromkeys(_distinct(cell))
    if not cells:
        raise ExperimentError("nothing is planned: give a game, a mode, a rate and a seed.")
    return list(cells)


def _distinct(cell: PlayerCell) -> list[PlayerCell]:
    """Returns the cells that one line in two panels of the figure needs."""
    if cell.setting == ISOLATED:
        alone = replace(cell, mode=ANY, weak_rate=1.0)
        return [replace(alone, devices=(WEAK,)), replace(alone, devices=(POWERFUL,))]
    return [cell]
