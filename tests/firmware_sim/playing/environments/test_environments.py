"""Games as a player sees them: shapes, endings, chance, and one sentence for each that is not."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from firmware_sim.errors import TaskError
from firmware_sim.playing.environments import Environment, make_environment
from firmware_sim.playing.environments.atari import AtariGame

GAMES = {
    "breakout": ((84, 84, 4), "uint8", 4),
    "ALE/BeamRider-v5": ((84, 84, 4), "uint8", 9),
    "cartpole": ((4,), "float32", 2),
    "minatar/asterix": ((10, 10, 4), "uint8", 6),
    "minatar/breakout": ((10, 10, 4), "uint8", 6),
    "minatar/freeway": ((10, 10, 7), "uint8", 6),
    "minatar/seaquest": ((10, 10, 10), "uint8", 6),
    "minatar/space_invaders": ((10, 10, 6), "uint8", 6),
}

# The others play the same game every time, or differ only in when the player begins.
CHANCE = ("cartpole", "minatar/asterix", "minatar/breakout", "minatar/freeway", "minatar/seaquest")


def film(game: Environment, seed: int, outputs: list[int]) -> list[bytes]:
    """What is seen; it starts anew where an episode ends."""
    shown = [game.reset(seed).tobytes()]
    for output in outputs:
        seen = game.step(output)
        shown.append(seen.obs.tobytes())
        if seen.ended:
            shown.append(game.reset().tobytes())
    return shown


@pytest.mark.parametrize("name", GAMES)
def test_a_game_shows_what_it_says_and_the_seed_decides(name: str) -> None:
    shape, dtype, actions = GAMES[name]
    game, again = make_environment(name, 200), make_environment(name, 200)
    assert (game.observation.shape, game.observation.dtype.name) == (shape, dtype)
    assert game.actions == actions
    assert game.stacked == game.spare_outputs == (shape == (84, 84, 4))
    obs = game.reset(3)
    before = obs.copy()
    seen = game.step(1)
    for array in (obs, seen.obs):
        assert (array.shape, array.dtype.name) == (shape, dtype)
    np.testing.assert_array_equal(obs, before, "what was shown stays as it was")
    outputs = np.random.default_rng(0).integers(actions, size=60).tolist()
    assert film(game, 3, outputs) == film(again, 3, outputs)
    if name in CHANCE:
        assert len({tuple(film(game, seed, outputs)) for seed in range(6)}) > 1
    game.close()


@pytest.mark.parametrize("name", ["cartpole", "minatar/freeway", "breakout"])
def test_an_episode_is_cut_off_at_its_greatest_length(name: str) -> None:
    game = make_environment(name, 7)
    for _ in range(2):  # the count begins anew
        game.reset(0)
        seen = [game.step(step % 2) for step in range(7)]
        assert [s.ended for s in seen] == [False] * 6 + [True]
        assert not any(s.terminated for s in seen)


def test_a_fallen_pole_ends_the_game_and_standing_is_worth_a_point() -> None:
    game = make_environment("cartpole", 500)
    game.reset(0)
    seen = [game.step(0)]
    while not seen[-1].ended:
        seen.append(game.step(0))
    assert 5 < len(seen) < 15
    assert seen[-1].terminated and not any(s.terminated for s in seen[:-1])
    assert {s.reward for s in seen} == {1.0}


def test_a_lost_life_is_told() -> None:
    game = AtariGame("breakout", 2_000)
    game.reset(0)
    seen = [game.step(1)]
    while not seen[-1].ended:
        seen.append(game.step(1))  # fire, and never move
    assert sum(s.life_lost for s in seen) == 5
    assert seen[-1].life_lost and seen[-1].terminated
    assert sum(s.terminated for s in seen) == 1


@pytest.mark.parametrize("name", ["minatar/breakout", "cartpole", "breakout"])
def test_sticky_actions_repeat_the_last_one(name: str) -> None:
    outputs = np.random.default_rng(1).integers(2, size=80).tolist()
    plain = film(make_environment(name, 500), 1, outputs)
    assert film(make_environment(name, 500, sticky=0.0), 1, outputs) == plain
    assert film(make_environment(name, 500, sticky=0.5), 1, outputs) != plain


def test_pictures() -> None:
    for name, shape in (("breakout", (84, 84, 3)), ("minatar/seaquest", (10, 10, 3))):
        game = make_environment(name, 10)
        game.reset(0)
        picture = game.render()
        assert (picture.shape, picture.dtype) == (shape, np.dtype(np.uint8))
        assert len(np.unique(picture)) > 1
    cartpole = make_environment("cartpole", 10, rendered=True)
    cartpole.reset(0)
    upright = cartpole.render()
    assert upright.dtype == np.uint8 and upright.ndim == 3 and upright.shape[-1] == 3
    for _ in range(8):
        cartpole.step(0)
    assert (cartpole.render() != upright).any()


class Corridor(gymnasium.Env):  # type: ignore[misc]
    """A user's own: three numbered actions that begin at 1, and one array for all observations."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=1)

    def __init__(self, render_mode: str | None = None) -> None:
        self.now = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: object = None):  # type: ignore[no-untyped-def]
        self.now[:] = 0
        return self.now, {}

    def step(self, action: int):  # type: ignore[no-untyped-def]
        assert action in (1, 2, 3)
        self.now[0] += 0.25 * (action - 1)
        return self.now, float(action), bool(self.now[0] >= 1), False, {}


def test_a_users_own_game_is_played() -> None:
    gymnasium.register("Corridor-v0", Corridor)
    game = make_environment("Corridor-v0", 50)
    assert (game.actions, str(game.observation)) == (3, "float32[2]")
    first = game.reset(0)
    seen = [game.step(output) for output in (0, 1, 2, 1)]
    assert [s.reward for s in seen] == [1, 2, 3, 2]
    assert [float(s.obs[0]) for s in seen] == [0, 0.25, 0.75, 1]
    assert [s.ended for s in seen] == [False, False, False, True]
    assert not first.any()


def test_a_device_does_not_load_what_minatar_plots_with() -> None:
    code = (
        "import sys; from firmware_sim.playing.environments import make_environment; "
        "make_environment('minatar/breakout', 5).reset(0); "
        "print([m for m in ('matplotlib', 'seaborn', 'pandas', 'gymnasium') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("brekout",
         "there is no Atari game 'brekout'; names are written as space_invaders or "
         "ALE/SpaceInvaders-v5 is, and ale_py.roms.get_all_rom_ids() lists them."),
        ("minatar/pong",
         "there is no MinAtar game 'pong'; there are asterix, breakout, freeway, seaquest, "
         "space_invaders."),
        ("Chess-v1", "the game 'Chess-v1' cannot be made (Environment `Chess` doesn't exist)."),
        ("Pendulum-v1",
         "the game 'Pendulum-v1' takes Box(-2.0, 2.0, (1,), float32) as an action; double "
         "Q-learning needs numbered ones (gymnasium.spaces.Discrete)."),
        ("FrozenLake-v1",
         "the game 'FrozenLake-v1' shows Discrete(16); a branch needs an array "
         "(gymnasium.spaces.Box)."),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(TaskError) as caught:
        make_environment(name, 10)
    assert str(caught.value) == sentence


def test_a_game_without_its_rom_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(TaskError) as caught:
        make_environment("breakout", 10)
    reason = "No such file or directory"
    assert str(caught.value) == f"the ROM of the game 'breakout' cannot be read ({reason})."


@pytest.mark.parametrize(
    ("missing", "name", "sentence"),
    [
        ("ale_py.vector_env", "breakout",
         "Atari is played with ale-py and gymnasium; install both."),
        ("gymnasium", "cartpole",
         "the game 'CartPole-v1' is played with gymnasium; install it."),
    ],
)  # fmt: skip
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str, name: str, sentence: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TaskError) as caught:
        make_environment(name, 10)
    assert str(caught.value) == sentence


def test_minatar_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TaskError) as caught:
        make_environment("minatar/breakout", 10)
    assert str(caught.value) == "MinAtar is played with the package minatar; install it."
