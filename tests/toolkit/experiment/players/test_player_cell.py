"""Planning a study of players: every distinct cell once, and what a device does in a round."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from toolkit.errors import ExperimentError
from toolkit.experiment.cell import ANY, SETTINGS
from toolkit.experiment.players.cell import MODES, PlayerCell, PlayerOptions, plan
from toolkit.experiment.presets import PLAYERS, WEAK_RATES

OPTIONS = PlayerOptions(
    task="minatar", rounds=10, steps_per_round=1_000, warm_up=50, exploration=100,
    replay=(100, 1_000), test_steps=10,
)  # fmt: skip


def planned(**changes: Any) -> list[PlayerCell]:
    options: dict[str, Any] = {
        "games": ("breakout", "asterix"),
        "settings": SETTINGS,
        "modes": MODES,
        "weak_rates": WEAK_RATES,
        "seeds": range(2),
    }
    return plan(OPTIONS, **options | changes)


def test_who_is_alone_is_planned_once() -> None:
    cells = planned()
    kinds = Counter((cell.setting, cell.mode, cell.weak_rate, cell.participants) for cell in cells)
    fleets = [
        (setting, mode, rate, "both")
        for setting in SETTINGS[1:]
        for mode in MODES
        for rate in (1.0, 0.5, 0.25)
    ]
    alone = [("isolated", ANY, 1.0, device) for device in ("weak", "powerful")]
    assert kinds == dict.fromkeys(alone + fleets, 2 * 2)  # games and seeds
    assert len({cell.name for cell in cells}) == len(cells)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_names_are_file_names() -> None:
    (cell,) = planned(
        games=["ALE/Pong-v5"], settings=["heterogeneous"], modes=["async"], weak_rates=[0.25],
        seeds=[3],
    )  # fmt: skip
    assert cell.name == "ALE-Pong-v5_heterogeneous_async_both_rate-0.25_seed-3"


def test_a_synchronous_weak_device_does_less_in_a_round_and_an_asynchronous_one_less_often() -> (
    None
):
    sync, free = planned(settings=["homogeneous"], weak_rates=[0.25], games=["breakout"], seeds=[0])
    assert [(sync.steps(d), sync.rounds(d)) for d in sync.devices] == [(250, 10), (1000, 10)]
    assert [(free.steps(d), free.rounds(d)) for d in free.devices] == [(1000, 2), (1000, 10)]
    assert (sync.merging.merges, free.merging.merges) == (10, 12)


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
        ({"modes": ["x"]}, "there is no coordinator 'x'; there are sync, async."),
        ({"weak_rates": [2.0]}, "the weak device cannot play at 2 of the powerful one's rate: take "
         "more than 0 and at most 1, as 0.25 is."),
        ({"seeds": []}, "nothing is planned: give a game, a mode, a rate and a seed."),
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
    ],
)
def test_refused_settings_of_players(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        replace(OPTIONS, **changes)
    assert str(caught.value) == sentence
