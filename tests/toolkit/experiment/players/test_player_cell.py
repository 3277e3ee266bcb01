"""Planning a study of players: every distinct cell once, and what a device does in a round."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ANY, SETTINGS
from toolkit.experiment.players.cell import MODES, TOPOLOGIES, PlayerCell, PlayerOptions, plan
from toolkit.experiment.presets import PLAYERS, WEAK_RATES

OPTIONS = PlayerOptions(
    task="minatar", rounds=10, steps_per_round=1_000, warm_up=50, exploration=100,
    replay=(100, 1_000), test_steps=10,
)  # fmt: skip


def planned(options: PlayerOptions = OPTIONS, **changes: Any) -> list[PlayerCell]:
    chosen: dict[str, Any] = {
        "games": ("breakout", "asterix"),
        "settings": SETTINGS,
        "topologies": TOPOLOGIES,
        "modes": MODES,
        "weak_rates": WEAK_RATES,
        "seeds": range(2),
    }
    return plan(options, **chosen | changes)


def of_one_game(options: PlayerOptions = OPTIONS, **changes: Any) -> dict[str, PlayerCell]:
    """Returns the cells of a synchronous fleet at a quarter of the rate, by setting and device."""
    one: dict[str, Any] = {
        "games": ["breakout"], "topologies": ["two-loss"], "modes": ["sync"], "weak_rates": [0.25],
        "seeds": [0],
    }  # fmt: skip
    cells = planned(options, **one | changes)
    return {f"{cell.setting} {cell.participants}": cell for cell in cells}


def test_a_control_is_planned_once_for_the_fleets_that_it_matches() -> None:
    cells = planned()
    kinds = Counter(
        (cell.setting, cell.topology, cell.mode, cell.weak_rate, cell.participants)
        for cell in cells
    )
    runs = [(mode, rate) for mode in MODES for rate in (1.0, 0.5, 0.25)]
    fleets = [("homogeneous", ANY, *run, "both") for run in runs]
    fleets += [("heterogeneous", topology, *run, "both") for topology in TOPOLOGIES for run in runs]
    alone = [("isolated", ANY, *run, "weak") for run in runs]
    alone += [("isolated", ANY, ANY, 1.0, "powerful")]  # no fleet changes what it does alone
    assert kinds == dict.fromkeys(alone + fleets, 2 * 2)  # games and seeds
    assert len({cell.name for cell in cells}) == len(cells)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_names_are_file_names() -> None:
    (cell,) = planned(
        games=["ALE/Pong-v5"], settings=["heterogeneous"], topologies=["two-loss"],
        modes=["async"], weak_rates=[0.25], seeds=[3],
    )  # fmt: skip
    assert cell.name == "ALE-Pong-v5_heterogeneous_two-loss_async_both_rate-0.25_seed-3"


def test_a_synchronous_weak_device_does_less_in_a_round_and_an_asynchronous_one_less_often() -> (
    None
):
    sync, free = planned(settings=["homogeneous"], weak_rates=[0.25], games=["breakout"], seeds=[0])
    assert [(sync.steps(d), sync.rounds(d)) for d in sync.devices] == [(250, 10), (1000, 10)]
    assert [(free.steps(d), free.rounds(d)) for d in free.devices] == [(1000, 2), (1000, 10)]
    assert (sync.merging.merges, free.merging.merges) == (10, 12)


@pytest.mark.parametrize("sync_by", ["powerful", "weak"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rate", WEAK_RATES)
def test_an_isolated_device_is_the_control_of_the_same_device_in_a_fleet(
    sync_by: str, mode: str, rate: float
) -> None:
    """As many rounds of as many steps, as much exploration, and tests in the same window.

    A device renews its target network at the beginning of every round, alone or in a fleet.
    """
    options = replace(OPTIONS, rounds=40, sync_by=sync_by)
    cells = of_one_game(options, modes=[mode], weak_rates=[rate])
    for device in ("weak", "powerful"):
        alone = cells[f"isolated {device}"]
        for setting in ("homogeneous", "heterogeneous"):
            fleet = cells[f"{setting} both"]
            for of in (PlayerCell.steps, PlayerCell.rounds, PlayerCell.exploration):
                assert of(alone, device) == of(fleet, device), (of, setting, device)
            assert alone.window(device) == fleet.window(device)


def test_rounds_can_be_counted_in_steps_of_the_weak_device() -> None:
    """Then the weak device merges after T own steps, and a round of the powerful one is longer."""
    options = replace(OPTIONS, rounds=40, sync_by="weak")
    cells = of_one_game(options)
    fleet = cells["heterogeneous both"]
    assert [(fleet.steps(d), fleet.rounds(d)) for d in fleet.devices] == [(1000, 10), (4000, 10)]
    assert fleet.merging.merges == 10
    for device in ("weak", "powerful"):
        alone = cells[f"isolated {device}"]
        assert (alone.mode, alone.weak_rate) == ("sync", 0.25)
        assert (alone.steps(device), alone.rounds(device)) == (fleet.steps(device), 10)


def test_exploration_scales_with_the_rate() -> None:
    """ε has decreased at the same virtual time on both devices."""
    options = replace(OPTIONS, exploration=1_001)
    fleet = of_one_game(options)["heterogeneous both"]
    assert (fleet.exploration("powerful"), fleet.exploration("weak")) == (1001, 250)
    assert replace(fleet, weak_rate=1.0).exploration("weak") == 1001
    assert replace(fleet, options=replace(options, exploration=1)).exploration("weak") == 1


def test_a_score_is_the_mean_of_the_last_quarter() -> None:
    fleet = of_one_game(replace(OPTIONS, rounds=78), modes=["async"])["homogeneous both"]
    assert (fleet.rounds("weak"), fleet.window("weak")) == (19, 5)
    assert (fleet.rounds("powerful"), fleet.window("powerful")) == (78, 20)
    assert replace(fleet, options=replace(OPTIONS, rounds=1)).window("powerful") == 1


def test_topologies_of_players() -> None:
    cells = planned(games=["breakout"], modes=["sync"], weak_rates=[1.0], seeds=[0])
    found = {(c.setting, c.topology): (c.zoo_topology(), c.shares_everything()) for c in cells}
    assert found == {
        ("isolated", ANY): ("share-first", False),
        ("homogeneous", ANY): ("share-first", True),
        ("heterogeneous", "share-first"): ("share-first", False),
        ("heterogeneous", "cascading"): ("cascading", False),
        ("heterogeneous", "two-loss"): ("two-loss", False),
    }
    keys = [cell.model_key("powerful") for cell in cells]
    assert len(set(keys)) == 5 - 1  # alone it is the network of a share-first fleet


def test_branches_and_their_replays() -> None:
    found = {
        (cell.setting, device): (cell.branch(device), cell.shares_everything(), cell.replay(device))
        for cell in planned()
        for device in cell.devices
    }
    small, large = ("lightweight", False, 100), ("complex", False, 1_000)
    assert found == {
        ("isolated", "weak"): small,
        ("isolated", "powerful"): large,
        ("homogeneous", "weak"): ("lightweight", True, 100),
        ("homogeneous", "powerful"): ("lightweight", True, 100),
        ("heterogeneous", "weak"): small,
        ("heterogeneous", "powerful"): large,
    }


def test_a_player_cell_survives_json() -> None:
    for cell in planned():
        assert PlayerCell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


def test_the_papers_study_is_the_default_of_atari() -> None:
    atari = PLAYERS["atari"]
    assert (atari.steps, atari.sync_every, atari.seeds) == (10_000_000, 10_000, 5)
    assert (atari.warm_up, atari.exploration) == (50_000, 1_000_000)
    assert atari.replay == (100_000, 1_000_000)
    assert atari.learning_rate is None  # the branch has the paper's


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": ["alone"]}, f"there is no mode 'alone'; there are {', '.join(SETTINGS)}."),
        ({"topologies": ["x"]}, "there is no topology 'x'; there are share-first, cascading, "
         "two-loss."),
        ({"modes": ["x"]}, "there is no coordinator 'x'; there are sync, async."),
        ({"weak_rates": [2.0]}, "the weak device cannot play at 2 of the powerful one's rate: take "
         "more than 0 and at most 1, as 0.25 is."),
        ({"seeds": []}, "nothing is planned: give a game, a mode, a topology, a rate and a seed."),
    ],
)  # fmt: skip
def test_refused_plans_of_players(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        planned(**changes)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"warm_up": 0}, "warm up must be at least 1."),
        ({"warm_up": 200}, "a replay of 100 steps does not hold a warm-up of 200."),
        ({"engine": "torch"}, "there is no engine 'torch'; there are tf, tflite."),
        ({"sync_by": "both"}, "there is no device 'both'; there are powerful, weak."),
    ],
)
def test_refused_settings_of_players(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        replace(OPTIONS, **changes)
    assert str(caught.value) == sentence
