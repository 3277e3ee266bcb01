"""Cells of the study of players (the paper's section 4.2), and which of them there are.

Planning is pure. Who learns alone depends neither on the weak device's rate nor on how a fleet
merges, so it is planned once, however many panels of a figure show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from firmware_sim.errors import TaskError
from firmware_sim.playing.player import game_of
from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ANY, DEVICES, MODES, POWERFUL, WEAK, Cell, Settings, check_known

TASKS = ("atari", "minatar", "cartpole")
COORDINATORS = ("sync", "async")


@dataclass(frozen=True, kw_only=True)
class RlSettings(Settings):
    """What all cells of a study of players have in common; lengths are in steps of a game."""

    engine: str = "tflite"
    steps_per_round: int  # of the powerful device between two synchronisations
    warm_up: int  # played before the first mini-batch, in the first round
    exploration: int  # over which ε falls
    replay: tuple[int, int]  # steps remembered beside a lightweight and a complex branch
    test_steps: int  # of a test episode at most

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
class RlCell(Cell):
    """Devices that play `game`; the weak one at `weak_rate` of the powerful one's pace.

    sync   a round ends for all when the powerful device has taken its steps; the weak one has
           taken `weak_rate` times as many
    async  each device merges after as many steps of its own, so the weak one does less often
    """

    goes_on: ClassVar[bool] = False  # a replay is too large to be written down again and again

    settings: RlSettings
    game: str
    coordinator: str  # sync or async; any in a cell in which nothing is merged
    weak_rate: float  # 1 in a cell in which nothing depends on it

    @property
    def name(self) -> str:
        where = f"{self.game.replace('/', '-')}_{self.mode}_{self.coordinator}"
        return f"{where}_{self.who}_rate-{self.weak_rate:g}_seed-{self.seed}"

    @property
    def environment(self) -> str:
        """The game's name among all environments."""
        try:
            return game_of(self.settings.task, self.game)
        except TaskError as error:
            raise ExperimentError(str(error)) from None

    def rate(self, device: str) -> float:
        return self.weak_rate if device == WEAK else 1.0

    def steps(self, device: str) -> int:
        """Mini-batches in a round of the device, each with a step of the game."""
        rate = 1.0 if self.coordinator == "async" else self.rate(device)
        return max(1, round(self.settings.steps_per_round * rate))

    def rounds(self, device: str) -> int:
        """How often the device tests itself, and merges if it is not alone."""
        rate = self.rate(device) if self.coordinator == "async" else 1.0
        return max(1, int(self.settings.rounds * rate))

    def shares_everything(self) -> bool:
        return self.mode == "homogeneous"

    def replay(self, device: str) -> int:
        """Steps; the paper gives the lightweight branch a tenth of the complex one's."""
        return self.settings.replay[self.kind(device) == "complex"]

    def model_key(self, device: str) -> tuple[object, ...]:
        settings = self.settings
        network = settings.task, self.game, self.kind(device), self.shares_everything()
        return (*network, settings.engine, settings.learning_rate)

    def to_json(self) -> dict[str, Any]:
        found = super().to_json()
        return found | {"settings": found["settings"] | {"replay": list(self.settings.replay)}}

    @property
    def merges(self) -> int:
        """Of the whole fleet: where nobody waits, each update is a merge."""
        if self.coordinator == "async":
            return sum(map(self.rounds, self.devices))
        return self.settings.rounds

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> RlCell:
        told = found["settings"]
        settings = RlSettings(**told | {"replay": tuple(told["replay"])})
        return cls(**found | {"settings": settings, "devices": tuple(found["devices"])})


def plan(
    settings: RlSettings,
    *,
    games: Sequence[str],
    modes: Sequence[str],
    coordinators: Sequence[str],
    weak_rates: Sequence[float],
    seeds: Sequence[int],
) -> list[RlCell]:
    """Every distinct cell once, seed by seed, so that a study can be looked at before it ends."""
    check_known("mode", modes, MODES)
    check_known("coordinator", coordinators, COORDINATORS)
    for rate in weak_rates:
        if not 0 < rate <= 1:
            raise ExperimentError(
                f"the weak device cannot play at {rate:g} of the powerful one's rate: take more "
                "than 0 and at most 1, as 0.25 is."
            )
    cells: dict[RlCell, None] = {}
    for seed, game, mode, way, rate in product(seeds, games, modes, coordinators, weak_rates):
        cell = RlCell(
            settings=settings,
            game=game,
            mode=mode,
            coordinator=way,
            devices=DEVICES,
            weak_rate=rate,
            seed=seed,
        )
        cells |= dict.fromkeys(_distinct(cell))
    if not cells:
        raise ExperimentError("nothing is planned: give a game, a mode, a rate and a seed.")
    return list(cells)


def _distinct(cell: RlCell) -> list[RlCell]:
    """What has to be run for one line in two panels of a figure."""
    if cell.mode == "isolated":
        alone = replace(cell, coordinator=ANY, weak_rate=1.0)
        return [replace(alone, devices=(WEAK,)), replace(alone, devices=(POWERFUL,))]
    return [cell]
