"""What a player learns from is what happened, noted down by the game itself."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.bundle.manifest import Measured
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import TaskError
from firmware_sim.playing.dqn import DqnTask, Memory
from firmware_sim.playing.environments import make_environment
from firmware_sim.playing.environments.environment import Seen
from firmware_sim.playing.options import DqnOptions, exploration
from firmware_sim.playing.plain_replay import PlainReplay, entry_bytes
from firmware_sim.playing.player import game_of
from firmware_sim.tensor_spec import TensorSpec
from profiles import load_profile
from tests.harness.manifests import MIB, a_manifest, inputs

OPTIONS = DqnOptions(warm_up_steps=20, exploration_steps=400, episode_steps=9, test_steps=9)
BATCH = 16
Step = tuple[int, int, float, int, float]  # obs, action, reward, next_obs, done


@dataclass
class Diary:
    """A game whose observations are numbered; it writes down every step. Points are -2 … 2, the
    fifth step costs a life, and every second episode ends by itself after seven steps."""

    most: int
    steps: list[Step] = field(default_factory=list)
    episodes: int = 0
    now: int = 0
    taken: int = 0
    observation = TensorSpec((1,), np.dtype(np.float32))
    actions = 3
    spare_outputs = False
    stacked = False

    def reset(self, seed: int | None = None) -> npt.NDArray[Any]:
        self.now, self.taken, self.episodes = self.now + 1, 0, self.episodes + 1
        return np.array([self.now], np.float32)

    def step(self, output: int) -> Seen:
        before, self.now, self.taken = self.now, self.now + 1, self.taken + 1
        reward = float(self.now % 5 - 2)
        over = self.episodes % 2 == 0 and self.taken == 7
        self.steps.append((before, output, reward, self.now, float(over)))
        ended = over or self.taken >= self.most
        obs = np.array([self.now], np.float32)
        return Seen(obs, reward, over, ended, life_lost=self.taken == 5)

    def render(self) -> npt.NDArray[Any]:
        raise NotImplementedError

    def close(self) -> None: ...


class Pupil:
    """Stands for a model of three outputs that prefers the last, and keeps what it trains on."""

    signatures = ("infer", "train")

    def __init__(self, outputs: int = 3) -> None:
        self.q = np.arange(outputs, dtype=np.float32)[None]
        self.batches: list[dict[str, npt.NDArray[Any]]] = []

    def call(self, signature: str, /, **inputs: npt.NDArray[Any]) -> dict[str, Any]:
        if signature == "infer":
            return {"output": self.q}
        self.batches.append(inputs)
        return {"loss": np.float32(0)}

    def inputs(self, signature: str) -> dict[str, TensorSpec]:
        return {"obs": TensorSpec((BATCH, 1), np.dtype(np.float32))}

    def seen(self) -> set[Step]:
        return {
            (int(s[0]), int(a), float(r), int(n[0]), float(d))
            for b in self.batches
            for s, a, r, n, d in zip(
                b["obs"], b["action"], b["reward"], b["next_obs"], b["done"], strict=True
            )
        }


def player(options: DqnOptions, most: int = 10_000) -> tuple[DqnTask, list[Diary]]:
    games: list[Diary] = []

    def environment(steps: int) -> Diary:
        games.append(Diary(steps))
        return games[-1]

    def replay() -> Memory:
        return PlainReplay(Diary.observation, most * entry_bytes(Diary.observation), most=most)

    task = DqnTask(
        name="diary", environment=environment, replay=replay, batch=BATCH, options=options, seed=3
    )
    return task, games


def learn(options: DqnOptions, steps: int, most: int = 10_000) -> tuple[Pupil, list[Step]]:
    task, games = player(options, most)
    pupil = Pupil()
    list(task.train(pupil, steps, "delta"))  # type: ignore[arg-type]
    assert task.steps_taken == len(games[0].steps) == steps + options.warm_up_steps - 1
    return pupil, games[0].steps


def test_what_is_learnt_is_what_was_played_across_the_ends_of_episodes() -> None:
    pupil, played = learn(replace(OPTIONS, clip_rewards=False), 400)
    assert pupil.seen() <= set(played)
    assert pupil.seen() >= set(played[:200]), "only newer ones may not have been drawn yet"
    assert {step[4] for step in played} == {0.0, 1.0}
    lengths = np.diff([0, *np.flatnonzero(np.diff([s[0] for s in played]) > 1) + 1])
    assert set(lengths.tolist()) == {9, 7}, "some are cut off, some end by themselves"


def test_old_steps_are_forgotten() -> None:
    pupil, played = learn(replace(OPTIONS, clip_rewards=False), 300, most=50)
    last = {step for batch in pupil.batches[-1:] for step in [int(o[0]) for o in batch["obs"]]}
    assert min(last) >= played[-1][3] - 60


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("life", [False, True])
def test_points_and_lives_are_learnt_as_chosen(clip: bool, life: bool) -> None:
    pupil, played = learn(replace(OPTIONS, clip_rewards=clip, life_loss_ends=life), 300)
    wanted = set()
    number = 0  # of a step in its episode
    for before, (obs, action, reward, ahead, done) in zip([None, *played], played, strict=False):
        number = number + 1 if before is not None and before[3] == obs else 1
        over = bool(done) or (life and number == 5)
        wanted.add((obs, action, float(np.sign(reward)) if clip else reward, ahead, float(over)))
    assert pupil.seen() <= wanted
    assert len(pupil.seen()) > 0.9 * len(wanted)


def test_exploring_falls_as_scheduled() -> None:
    options = replace(OPTIONS, exploration_steps=3_000, warm_up_steps=1, last_exploration=0.1)
    _, played = learn(options, 6_000)
    best = np.array([action == 2 for _, action, *_ in played])
    for start in range(0, 6_000, 1_000):
        epsilon = np.mean([exploration(step, options) for step in range(start, start + 1_000)])
        wanted = 1 - epsilon + epsilon / 3
        assert best[start : start + 1_000].mean() == pytest.approx(wanted, abs=0.05)


def test_a_score_is_the_mean_of_the_test_episodes_in_points() -> None:
    task, games = player(replace(OPTIONS, test_episodes=5))
    assert task.evaluate(Pupil()).keys() == {"score"}  # type: ignore[arg-type]
    test = games[-1]
    assert (test.episodes, test.most) == (5, OPTIONS.test_steps)
    mean = sum(step[2] for step in test.steps) / 5
    assert task.evaluate(Pupil()) == {"score": pytest.approx(mean)}  # type: ignore[arg-type]
    assert games[0].steps == [] and task.samples == 0


def test_outputs_that_are_no_actions_are_refused() -> None:
    task, _ = player(OPTIONS)
    sentence = "the branch has 2 outputs and the game 'diary' has 3 actions; they must be as many."
    for call in (
        lambda: list(task.train(Pupil(2), 1, "delta")),  # type: ignore[arg-type]
        lambda: task.evaluate(Pupil(2)),  # type: ignore[arg-type]
    ):
        with pytest.raises(TaskError) as caught:
            call()
        assert str(caught.value) == sentence


# --- from a bundle -------------------------------------------------------------------------------


def bundle(shape: list[int], dtype: str, folder: Any) -> Bundle:
    return Bundle(
        folder,
        a_manifest(
            signatures={"train": inputs(obs=(dtype, 32, *shape))},
            profile=replace(load_profile("weak"), memory_cap_mib=100),
            measured=Measured("none", "0", 1, 60 * MIB, 0, 0.1),
        ),
    )


def test_the_memory_cap_decides_how_many_small_observations_are_kept(tmp_path: Any) -> None:
    task = make_task("minatar", bundle([10, 10, 4], "uint8", tmp_path), TaskOptions())
    assert isinstance(task, DqnTask) and isinstance(task.replay, PlainReplay)
    assert task.replay.capacity == (100 - 60 - 6) * 2**20 // (400 + 13)
    task = make_task("cartpole", bundle([4], "float32", tmp_path), TaskOptions())
    assert isinstance(task, DqnTask) and isinstance(task.replay, PlainReplay)
    assert task.replay.capacity == 1_000_000, "the paper's most"


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("cartpole", {"game": "breakout"},
         "the task cartpole is a game of its own and takes no 'breakout'."),
        ("play", {}, "the task play needs the name of a game, as LunarLander-v3."),
        ("play", {"game": "Pendulum-v1"},
         "the game 'Pendulum-v1' takes Box(-2.0, 2.0, (1,), float32) as an action; double "
         "Q-learning needs numbered ones (gymnasium.spaces.Discrete)."),
        ("play", {"game": "MountainCar-v0"},
         "the game 'MountainCar-v0' shows float32[2]; the bundle at own takes float32[4]."),
        ("cartpole", {"share": (0, 0.5)}, "the task cartpole has no examples to take a share of."),
    ],
)  # fmt: skip
def test_a_game_that_does_not_fit_is_refused(
    task: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TaskError) as caught:
        make_task(task, bundle([4], "float32", "own"), TaskOptions(**options))
    assert str(caught.value) == sentence


def test_only_ataris_replay_is_kept_on_disk(tmp_path: Any) -> None:
    with pytest.raises(TaskError) as caught:
        options = TaskOptions(replay_folder=tmp_path)
        make_task("cartpole", bundle([4], "float32", tmp_path), options)
    sentence = "only Atari's replay can be kept on disk; that of other games is small."
    assert str(caught.value) == sentence


def test_names_of_games() -> None:
    assert game_of("atari", None) == "breakout"
    assert game_of("atari", "ALE/Pong-v5") == "ALE/Pong-v5"
    assert game_of("minatar", "seaquest") == "minatar/seaquest"
    assert game_of("cartpole", None) == "cartpole"
    assert make_environment(game_of("play", "CartPole-v1"), 5).actions == 2
