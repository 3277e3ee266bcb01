"""Cells of the study of players (the paper's section 4.2), and the plan of a study.

Planning does no I/O. An isolated device is the control of the same device in a fleet: it takes as
many steps, and tests and renews its target network after the same numbers of steps. A control that
several fleets have in common is planned once.
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
from toolkit.zoo import PlayedTask, Topology

TASKS = get_args(PlayedTask)
SYNC, ASYNC = MODES = ("sync", "async")
SHARE_FIRST, CASCADING, TWO_LOSS = TOPOLOGIES = get_args(Topology)
SYNC_BY = (POWERFUL, WEAK)
SCORE_WINDOW = 0.25  # part of a device's steps: a score is the mean of the tests in that last part


@dataclass(frozen=True, kw_only=True)
class PlayerOptions(StudyOptions):
    """What all cells of a study of players have in common; lengths are in steps of a game."""

    engine: str = "tflite"
    steps_per_round: int  # of the device in `sync_by`, between two merges
    warm_up: int  # before the first mini-batch, in the first round
    exploration: int  # of the powerful device, during which ε decreases; of the weak one in ratio
    replay: tuple[int, int]  # capacity beside a lightweight and a complex branch
    test_steps: int  # maximum length of a test episode
    sync_by: str = POWERFUL  # the device whose steps `steps_per_round` counts

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("device", [self.sync_by], SYNC_BY)
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
    mode: str  # sync or async; any where it makes no difference
    weak_rate: float
    topology: str = SHARE_FIRST  # any in a cell that is not heterogeneous

    @property
    def name(self) -> str:
        fleet = f"{self.game.replace('/', '-')}_{self.setting}_{self.topology}_{self.mode}"
        return f"{fleet}_{self.participants}_rate-{self.weak_rate:g}_seed-{self.seed}"

    @property
    def merging(self) -> Merging:
        """Updates have equal weights."""
        asynchronous = self.mode == ASYNC
        merges = (sum if asynchronous else max)(map(self.rounds, self.devices))
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
        if self.mode == ASYNC:
            return self.options.steps_per_round
        return max(1, round(self.options.steps_per_round * self.rate(device) / self._pace))

    def rounds(self, device: str) -> int:
        """The number of rounds of the device; each ends with a test and, in a fleet, a merge."""
        rate = self.rate(device) if self.mode == ASYNC else self._pace
        return max(1, int(self.options.rounds * rate))

    @property
    def _pace(self) -> float:
        """The rate of the device whose steps are counted: with the weak one rounds are longer."""
        return self.rate(self.options.sync_by)

    def window(self, device: str) -> int:
        """The number of tests in the mean that is the device's score."""
        return max(1, round(SCORE_WINDOW * self.rounds(device)))

    def shares_everything(self) -> bool:
        """Whether all layers are shared, and not only the stem."""
        return self.setting == HOMOGENEOUS

    def exploration(self, device: str) -> int:
        """The number of the device's own steps during which ε decreases."""
        return max(1, round(self.options.exploration * self.rate(device)))

    def zoo_topology(self) -> str:
        """The topology as the zoo calls it; any is as good where all layers or none are shared."""
        return SHARE_FIRST if self.topology == ANY else self.topology

    def replay(self, device: str) -> int:
        """Capacity in steps; in the paper the lightweight branch has a tenth of the other."""
        return self.options.replay[self.branch(device) == "complex"]

    def model_key(self, device: str) -> tuple[object, ...]:
        options = self.options
        branch = self.branch(device), self.zoo_topology(), self.shares_everything()
        network = options.task, self.game, *branch
        return (*network, options.engine, options.learning_rate)


def plan(
    options: PlayerOptions,
    *,
    games: Sequence[str],
    settings: Sequence[str],
    topologies: Sequence[str],
    modes: Sequence[str],
    weak_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[PlayerCell]:
    """Returns every distinct cell once, ordered by seed, so that early results can be drawn."""
    check_known("mode", settings, SETTINGS)  # the word of the option --modes
    check_known("topology", topologies, TOPOLOGIES)
    check_known("coordinator", modes, MODES)  # the word of the option --coordinator
    for rate in weak_rates:
        if not 0 < rate <= 1:
            raise ExperimentError(
                f"the weak device cannot play at {rate:g} of the powerful one's rate: take more "
                "than 0 and at most 1, as 0.25 is."
            )
    cells: dict[PlayerCell, None] = {}
    for seed, game, setting, topology, mode, rate in product(
        seeds, games, settings, topologies, modes, weak_rates
    ):
        cell = PlayerCell(
            options=options,
            game=game,
            setting=setting,
            topology=topology,
            mode=mode,
            devices=DEVICES,
            weak_rate=rate,
            seed=seed,
        )
        cells |= dict.fromkeys(_distinct(cell))
    if not cells:
        raise ExperimentError(
            "nothing is planned: give a game, a mode, a topology, a rate and a seed."
        )
    return list(cells)


def _distinct(cell: PlayerCell) -> list[PlayerCell]:
    """Returns the cells that one line in two panels of the figure needs."""
    if cell.setting == HOMOGENEOUS:
        return [replace(cell, topology=ANY)]
    if cell.setting == ISOLATED:
        alone = replace(cell, topology=ANY)
        # The powerful device of most fleets has the rounds of a fleet of equal rates.
        own_rate = cell.options.sync_by == WEAK and cell.mode == SYNC
        powerful = alone if own_rate else replace(alone, mode=ANY, weak_rate=1.0)
        return [replace(alone, devices=(WEAK,)), replace(powerful, devices=(POWERFUL,))]
    return [cell]
