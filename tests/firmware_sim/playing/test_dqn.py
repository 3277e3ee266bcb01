"""The player explores as scheduled, fills its replay, learns, and can be restarted."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import TaskError
from firmware_sim.playing.dqn import choose
from firmware_sim.playing.environments.atari import AtariGame
from firmware_sim.playing.options import DqnOptions, exploration, usual_options
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.runtime import Model
from tests.harness.manifests import a_manifest, inputs

DQN = DqnOptions(warm_up_steps=40, test_steps=100)
SMALL = TaskOptions(replay_frames=200, seed=1, dqn=DQN)


@pytest.fixture
def model(atari_bundle: Bundle) -> Model:
    return Model(atari_bundle.model, runtime="ai-edge-litert")


def copied(model: Model) -> dict[str, npt.NDArray[Any]]:
    return {name: value.copy() for name, value in model.call("get_state").items()}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TaskError) as caught:
        call()
    return str(caught.value)


class Preferring:
    """Stands for a model of six outputs that always prefers one, and keeps what it trains on."""

    signatures = ("infer", "train")

    def __init__(self, output: int) -> None:
        self.q = np.zeros((1, 6), np.float32)
        self.q[0, output] = 1
        self.shown: list[bytes] = []
        self.batches: list[dict[str, npt.NDArray[Any]]] = []

    def call(self, signature: str, /, **inputs: npt.NDArray[Any]) -> dict[str, Any]:
        if signature == "infer":
            assert (inputs["x"].shape, inputs["x"].dtype.name) == ((1, 84, 84, 4), "uint8")
            self.shown.append(inputs["x"].tobytes())
            return {"output": self.q}
        assert signature == "train"
        self.batches.append(inputs)
        return {"loss": np.float32(len(self.batches))}

    def inputs(self, signature: str) -> dict[str, TensorSpec]:
        return {"obs": TensorSpec((32, 84, 84, 4), np.dtype(np.uint8))}


def values(model: Preferring, name: str) -> set[float]:
    return {float(value) for batch in model.batches for value in batch[name]}


# --- acting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "epsilon"),
    [(0, 1.0), (1, 0.9999991), (500_000, 0.55), (1_000_000, 0.1), (5_000_000, 0.1)],
)
def test_exploration_falls_linearly_to_a_tenth(step: int, epsilon: float) -> None:
    assert exploration(step, DqnOptions()) == pytest.approx(epsilon, abs=1e-12)


def test_small_games_have_schedules_of_their_own() -> None:
    assert usual_options("breakout") == usual_options("LunarLander-v3") == DqnOptions()
    assert usual_options("minatar/seaquest").exploration_steps == 100_000
    cartpole = usual_options("cartpole")
    assert cartpole == usual_options("CartPole-v1")
    half = cartpole.exploration_steps // 2
    middle = (1 + cartpole.last_exploration) / 2
    assert exploration(half, cartpole) == pytest.approx(middle)
    assert exploration(0, replace(cartpole, exploration_steps=0)) == cartpole.last_exploration


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"warm_up_steps": 0}, "warm_up_steps is 0; it must be at least 1."),
        ({"test_steps": 0}, "test_steps is 0; it must be at least 1."),
        ({"test_episodes": -1}, "test_episodes is -1; it must be at least 1."),
        ({"exploration_steps": -1}, "exploration_steps is -1, which is below 0."),
        ({"test_exploration": 1.5}, "test_exploration is 1.5, which is not between 0 and 1."),
    ],
)
def test_impossible_schedules_are_refused(options: dict[str, Any], sentence: str) -> None:
    assert refusal(lambda: DqnOptions(**options)) == sentence


def test_a_player_takes_the_best_output_unless_it_explores() -> None:
    model, rng = Preferring(3), np.random.default_rng(0)
    obs = np.zeros((84, 84, 4), np.uint8)
    taken = [choose(model, obs, 0.25, 6, rng) for _ in range(4000)]  # type: ignore[arg-type]
    share = np.bincount(taken, minlength=6) / 4000
    expected = np.full(6, 0.25 / 6) + 0.75 * (np.arange(6) == 3)
    np.testing.assert_allclose(share, expected, atol=0.03)
    assert len(model.shown) == pytest.approx(3000, abs=150), "exploring does not need the model"
    assert {choose(model, obs, 0.0, 6, rng) for _ in range(50)} == {3}  # type: ignore[arg-type]


def play(output: int, steps: int = 70) -> tuple[list[bytes], bool]:
    """What an episode of always the same output looks like, and whether it then ended."""
    game = AtariGame("space_invaders", 60)
    frames, ended = [game.reset(seed=3).tobytes()], False
    for _ in range(steps):
        seen = game.step(output)
        frames.append(seen.obs.tobytes())
        assert not seen.terminated, "it is only cut off"
        if ended := seen.ended:
            break
    game.close()
    return frames, ended


def test_an_output_without_an_action_does_nothing() -> None:
    nothing = play(0)
    assert len(nothing[0]) == 1 + 240 // 4 and nothing[1], "an episode is cut off in frames"
    assert play(6) == play(7) == nothing  # the game has six actions
    # Nothing, fire, right, and both; the cannon stands at the left edge and cannot go left.
    assert len({tuple(play(action)[0]) for action in (0, 1, 2, 4)}) == 4


# --- learning ------------------------------------------------------------------------------------


def test_the_replay_is_warm_before_the_first_batch(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    assert task.samples == 0
    model = Preferring(2)
    losses = task.train(model, 3, "delta")  # type: ignore[arg-type]
    assert task.samples == 0 and model.batches == []
    assert next(losses) == 1
    assert (task.samples, int(task.state()["step"])) == (40, 40)
    assert list(losses) == [2, 3]
    assert (task.samples, int(task.state()["step"])) == (42, 42)  # one batch per step
    assert list(task.train(model, 2, "delta")) == [4, 5]  # type: ignore[arg-type]
    assert task.samples == 44


def test_a_long_game_is_kept_as_far_as_the_replay_goes(atari_bundle: Bundle) -> None:
    task = make_task(
        "atari", atari_bundle, replace(SMALL, replay_frames=60, dqn=replace(DQN, warm_up_steps=30))
    )
    model = Preferring(0)
    list(task.train(model, 300, "delta"))  # type: ignore[arg-type]
    assert int(task.state()["step"]) == 329
    assert 57 <= task.samples <= 60
    # Random play in Breakout wins a brick now and then, and loses five lives in some 200 steps.
    assert values(model, "reward") == {0, 1}
    assert values(model, "action") == {0, 1, 2, 3, 4, 5}
    assert values(model, "done") == {0, 1}


def test_of_points_only_the_sign_is_learnt(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, replace(SMALL, game="space_invaders"))
    model = Preferring(0)
    list(task.train(model, 150, "delta"))  # type: ignore[arg-type]
    assert values(model, "reward") == {0, 1}


def test_an_episode_that_is_cut_off_is_not_done(atari_bundle: Bundle) -> None:
    short = replace(SMALL, dqn=replace(DQN, episode_steps=20))
    task = make_task("atari", atari_bundle, short)
    model = Preferring(0)
    list(task.train(model, 100, "delta"))  # type: ignore[arg-type]
    assert values(model, "done") == {0}
    # Episodes of 20 steps and 21 frames: no more than 200 frames are kept, but all steps so far.
    assert task.samples == int(task.state()["step"]) == 139
    blank = [not obs[..., :3].any() for batch in model.batches for obs in batch["obs"]]
    assert np.mean(blank) == pytest.approx(1 / 20, abs=0.015), "each begins with black frames"


@pytest.mark.parametrize("exchange", ["delta", "gradient"])
def test_a_real_bundle_learns_from_play(atari_bundle: Bundle, model: Model, exchange: str) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    before = copied(model)
    losses = list(task.train(model, 30, exchange))
    after = copied(model)
    assert len(losses) == 30
    assert all(np.isfinite(losses)) and min(losses) >= 0 and len(set(losses)) > 20
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert ({"stem_conv1/kernel", "q_values/bias"} <= moved) == (exchange == "delta")
    assert any("accumulated" in name for name in moved) == (exchange == "gradient")
    assert not any(name.startswith("target/") for name in moved)
    assert after["optimizer/step"] == (30 if exchange == "delta" else 0)


def test_a_merged_part_goes_into_the_target_network(atari_bundle: Bundle, model: Model) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    list(task.train(model, 5, "delta"))
    trained = copied(model)
    targets = [name for name in trained if name.startswith("target/")]
    assert targets
    assert any(
        not np.array_equal(trained[name], trained[name.removeprefix("target/")]) for name in targets
    )
    task.synchronised(model)
    synchronised = copied(model)
    for name in targets:
        np.testing.assert_array_equal(synchronised[name], trained[name.removeprefix("target/")])


def test_a_test_episode_is_repeatable_and_leaves_training_alone(
    atari_bundle: Bundle, model: Model
) -> None:
    options = replace(SMALL, dqn=replace(DQN, test_steps=500))
    judged, plain = (make_task("atari", atari_bundle, options) for _ in range(2))
    list(judged.train(model, 3, "delta"))
    weights = copied(model)
    first = judged.evaluate(model)
    assert first.keys() == {"score"}
    assert first["score"] >= 0 and first["score"] == int(first["score"])
    assert judged.evaluate(model) == first
    for name, value in copied(model).items():
        np.testing.assert_array_equal(value, weights[name])
    # Nor do the random numbers of training know that there was a test.
    fresh = Model(atari_bundle.model, runtime="ai-edge-litert")
    list(plain.train(fresh, 3, "delta"))
    assert list(judged.train(model, 4, "delta")) == list(plain.train(fresh, 4, "delta"))


def test_a_score_counts_points_of_a_capped_episode(atari_bundle: Bundle) -> None:
    short, longer = (
        make_task(
            "atari",
            atari_bundle,
            replace(SMALL, game="space_invaders", dqn=replace(DQN, test_steps=steps)),
        )
        for steps in (100, 300)
    )
    model = Preferring(1)  # fire
    few = short.evaluate(model)["score"]  # type: ignore[arg-type]
    # One answer tells the number of outputs; of 100 steps two or so explore.
    assert 90 <= len(model.shown) <= 101
    many = longer.evaluate(model)["score"]  # type: ignore[arg-type]
    assert many > few > 0
    assert (few % 5, many % 5) == (0, 0), "an invader is worth 5, 10, … 30 points"


def test_every_test_episode_is_another_game(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, replace(SMALL, dqn=replace(DQN, test_steps=20)))

    def shown() -> list[bytes]:
        model = Preferring(0)
        task.evaluate(model)  # type: ignore[arg-type]
        return model.shown

    first = shown()
    assert shown() == first
    list(task.train(Preferring(0), 1, "delta"))  # type: ignore[arg-type]
    assert shown() != first


def test_the_same_seed_plays_the_same_game(atari_bundle: Bundle) -> None:
    def losses(seed: int) -> list[float]:
        task = make_task("atari", atari_bundle, replace(SMALL, seed=seed))
        return list(task.train(Model(atari_bundle.model), 4, "delta"))

    assert losses(1) == losses(1) != losses(2)


# --- going on ------------------------------------------------------------------------------------


def test_a_restarted_player_keeps_its_steps_and_warms_up_anew(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    list(task.train(Preferring(0), 10, "delta"))  # type: ignore[arg-type]
    state = task.state()
    assert {name: int(state[name]) for name in ("seed", "step")} == {"seed": 1, "step": 49}
    again = make_task("atari", atari_bundle, replace(SMALL, seed=8))
    again.restore(state)
    assert again.samples == 0
    assert all(np.array_equal(again.state()[name], state[name]) for name in state)
    model = Preferring(0)
    list(again.train(model, 1, "delta"))  # type: ignore[arg-type]
    assert (again.samples, int(again.state()["step"]), len(model.batches)) == (40, 89, 1)


def test_a_late_player_rarely_explores(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    task.restore(task.state() | {"step": np.array(2_000_000)})
    model = Preferring(0)
    list(task.train(model, 60, "delta"))  # type: ignore[arg-type]
    assert (
        75 <= len(model.shown) <= 99
    )  # of 99 steps nine in ten, and one for the number of outputs


# --- refusals ------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(
    atari_bundle: Bundle, digits_bundle: Bundle, tmp_path: Path
) -> None:
    signatures = {"train": inputs(obs=("uint8", 32, 84, 84, 1))}
    flat = replace(atari_bundle, manifest=a_manifest(signatures=signatures))
    folder = atari_bundle.folder
    for name, bundle, options, sentence in (
        ("atari", digits_bundle, SMALL,
         "the task atari needs a bundle that learns by double Q-learning; the one at "
         f"{digits_bundle.folder} trains on x, y."),
        ("atari", flat, SMALL,
         "the game 'breakout' shows uint8[84, 84, 4]; the bundle at "
         f"{folder} takes uint8[84, 84, 1]."),
        ("digits", atari_bundle, SMALL,
         f"the task digits needs a bundle that learns from examples; the one at {folder} trains on "
         "obs, action, reward, next_obs, done."),
        ("atari", atari_bundle, replace(SMALL, data=tmp_path),
         f"the task atari brings its own data and takes no {tmp_path}."),
        ("atari", atari_bundle, replace(SMALL, share=(0, 0.5)),
         "the task atari has no examples to take a share of."),
        ("atari", atari_bundle, replace(SMALL, game="SpaceInvaders"),
         "there is no Atari game 'SpaceInvaders'; names are written as space_invaders or "
         "ALE/SpaceInvaders-v5 is, and ale_py.roms.get_all_rom_ids() lists them."),
        ("atari", atari_bundle, replace(SMALL, replay_frames=79),
         "a warm-up of 40 steps needs a replay of at least 80 frames, not 79."),
    ):  # fmt: skip
        assert refusal(partial(make_task, name, bundle, options)) == sentence


def test_a_state_of_another_game_is_refused(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    other = make_task("atari", atari_bundle, replace(SMALL, game="space_invaders"))
    sentence = "the state was saved with other data than the task has now."
    assert refusal(lambda: task.restore(other.state())) == sentence


def test_an_unknown_exchange_is_refused_before_anything_is_played(atari_bundle: Bundle) -> None:
    task = make_task("atari", atari_bundle, SMALL)
    sentence = "there is no exchange 'sum'; there are delta and gradient."
    assert refusal(lambda: task.train(Preferring(0), 1, "sum")) == sentence  # type: ignore[arg-type]
    assert int(task.state()["step"]) == 0


@pytest.mark.parametrize("missing", ["ale_py", "ale_py.vector_env"])
def test_without_ale_py_one_sentence_says_so(
    atari_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    sentence = "Atari is played with ale-py and gymnasium; install both."
    assert refusal(lambda: make_task("atari", atari_bundle, SMALL)) == sentence
