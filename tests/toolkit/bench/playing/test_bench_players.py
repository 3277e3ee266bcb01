"""`toolkit bench rl` as a command; its contestants are the same agent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from firmware_sim.tensor_spec import Array
from toolkit import zoo
from toolkit.bench.playing.agents import CompiledAgent, KerasAgent, Player
from toolkit.bench.playing.benchmark import tables
from toolkit.bench.step.reference import Reference

pytestmark = pytest.mark.xdist_group("experiment")


def test_the_command_compares_players(toolkit: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "new" / "rl.json"
    options = ("--task", "cartpole", "--warm-up", "40", "--steps", "60", "--rounds", "1")
    ran = toolkit("bench", "rl", "--out", out, *options)
    assert (ran.code, ran.err) == (0, "")
    assert f"every number is in {out}" in ran.out.replace("\n", " ")
    report = json.loads(out.read_text())
    ours, ordinary, compiled = (report["contestants"][n] for n in ("ours", "keras", "tf.function"))
    assert ours["ours_faster"] == ours["ours_smaller"] == 1
    for other in (ordinary, compiled):
        assert other["ours_faster"] == pytest.approx(
            ours["steps_per_second"] / other["steps_per_second"]
        )
        assert other["ours_lighter"] == pytest.approx(other["cpu_seconds"] / ours["cpu_seconds"])
        # A device loads no TensorFlow; its smallest branch takes a small part of a Keras step.
        assert other["peak_bytes"] > 5 * ours["peak_bytes"]
        assert other["ours_lighter"] > 2
    assert sum(report["parts"].values()) == pytest.approx(1)
    assert all(0 < part < 1 for part in report["parts"].values())
    assert len(tables(report)) == 3


def test_an_unknown_game_is_refused(toolkit: Callable[..., Any], tmp_path: Path) -> None:
    said = toolkit("bench", "rl", "--task", "minatar", "--game", "go", "--out", tmp_path / "x")
    assert said.refusal == (
        "there is no MinAtar game 'go'; there are asterix, breakout, freeway, seaquest, "
        "space_invaders."
    )


def batches(count: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.random((32, 4), np.float32),
            "action": rng.integers(0, 2, 32, dtype=np.int32),
            "reward": rng.random(32, np.float32),
            "next_obs": rng.random((32, 4), np.float32),
            "done": rng.integers(0, 2, 32).astype(np.float32),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", [KerasAgent, CompiledAgent])
def test_the_ordinary_agents_learn_what_the_reference_learns(kind: Any) -> None:
    def fresh() -> Any:
        keras.utils.set_random_seed(3)
        return zoo.build("cartpole", "lightweight")

    reference, branch = Reference(fresh()), fresh()
    agent = kind(branch)
    for batch in batches(3):
        reference.train(**batch)
        agent.learn(**batch)
    for ours, theirs in zip(branch.model.get_weights(), reference.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    obs = batches(1)[0]["obs"][0]
    assert agent.act(obs) == int(np.argmax(branch.model(obs[None])))


def test_a_player_warms_up_once_and_learns_every_step() -> None:
    class Counting:
        learnt = 0

        def act(self, obs: Any) -> int:
            return 1

        def learn(self, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any) -> float:
            assert obs.shape == next_obs.shape == (32, 4)
            assert (action.dtype, reward.dtype, done.dtype) == (np.int32, np.float32, np.float32)
            self.learnt += 1
            return 0.0

    agent = Counting()
    player = Player(agent, "cartpole", warm_up=50)
    player.train(3, outputs=2)
    assert agent.learnt == 3
    assert len(player._memory) == 50 + 2  # the first of the three was part of the warm-up
