"""Plays a game and learns from it by double deep Q-learning.

The arithmetic is in the bundle's `train`; nothing here depends on the network:

    target = r + γ·(1 - done)·Q(s', argmax_a Q(s', a; θ); θ⁻)
    loss = huber(Q(s, a; θ) - target)

Here is the player. At every step it acts, stores the result, and, once the replay is warm, trains
on one mini-batch. At each synchronisation θ⁻ ← θ, and the merged network plays a test episode.

The replay and the game in progress are too large to be part of the state: after a restart the
player continues with its count of steps, hence with its ε, and fills a new replay first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Protocol

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.playing.environments.environment import Environment
from firmware_sim.playing.options import DqnOptions, exploration
from firmware_sim.playing.replay import Transitions
from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model
from firmware_sim.training.steps import take_batch
from firmware_sim.training.task import signature_for
from firmware_sim.training.task_state import arrays_digest, pack, unpack


class Memory(Protocol):
    """A replay: the newest steps that fit into its budget."""

    @property
    def full(self) -> bool:
        """Whether a step was dropped already."""

    def __len__(self) -> int:
        """Steps held."""

    def begin(self, obs: Array) -> None:
        """Stores the first observation of an episode."""

    def add(self, action: int, reward: float, done: bool, obs: Array) -> None:
        """Stores one step from the newest observation to this one."""

    def sample(self, rng: np.random.Generator, size: int) -> Transitions:
        """Draws uniformly from the steps held, with repetition."""


class DqnTask:
    """A player of one game, with its replay."""

    def __init__(
        self,
        *,
        name: str,
        environment: Callable[[int], Environment],
        replay: Callable[[], Memory],
        batch: int,
        options: DqnOptions,
        seed: int = 0,
    ) -> None:
        """`name` distinguishes states of different games; `environment` makes the game, given the
        most steps of an episode."""
        self._make_environment = environment
        self._make_replay = replay
        self._batch = batch
        self._options = options
        self._digest = arrays_digest(np.frombuffer(name.encode(), np.uint8))
        self._name = name
        self._environment: Environment | None = None
        self._begin(seed, 0)

    @property
    def samples(self) -> int:
        return len(self.replay)

    def waits_for(self) -> str:
        return ""

    @property
    def steps_taken(self) -> int:
        """Actions taken so far, those before a restart included; tests do not count."""
        return self._step

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        return self._learn(model, steps, signature_for(exchange))

    def evaluate(self, model: Model) -> dict[str, float]:
        """Returns the mean points of test episodes, which seed and count of steps determine."""
        options = self._options
        rng = np.random.default_rng((self._seed, self._step, 1))
        with closing(self._make_environment(options.test_steps)) as environment:
            outputs = outputs_for(model, environment, self._name)
            seed: int | None = _game_seed(rng)
            total = 0.0
            for _ in range(options.test_episodes):
                obs, seed, ended = environment.reset(seed), None, False
                while not ended:
                    output = choose(model, obs, options.test_exploration, outputs, rng)
                    seen = environment.step(output)
                    obs, ended = seen.obs, seen.ended
                    total += seen.reward
        return {"score": total / options.test_episodes}

    def state(self) -> dict[str, Array]:
        return pack(self._digest, seed=self._seed, step=self._step)

    def restore(self, state: Mapping[str, Array]) -> None:
        seed, step = unpack(state, self._digest, "seed", "step")
        del self.replay  # first: there is memory for one only
        self._begin(seed, step)

    def synchronised(self, model: Model) -> None:
        """θ⁻ ← θ: the merged values go into the target network too."""
        model.call("sync_target")

    def _begin(self, seed: int, step: int) -> None:
        self._seed = seed
        self._step = step  # actions taken, ever
        self._rng = np.random.default_rng((seed, step))
        self.replay = self._make_replay()
        if self._environment is not None:
            self._environment.close()
        self._environment = self._make_environment(self._options.episode_steps)
        self._obs = self._start_episode(self._environment, _game_seed(self._rng))

    def _learn(self, model: Model, steps: int, signature: str) -> Iterator[float]:
        assert self._environment is not None
        environment, options = self._environment, self._options
        outputs = outputs_for(model, environment, self._name)
        for _ in range(steps):
            self._play(model, environment, outputs)
            while len(self.replay) < options.warm_up_steps and not self.replay.full:
                self._play(model, environment, outputs)
            batch = self.replay.sample(self._rng, self._batch)
            yield take_batch(
                model,
                signature,
                obs=batch.obs,
                action=batch.action,
                reward=batch.reward,
                next_obs=batch.next_obs,
                done=batch.done,
            )
            del batch

    def _play(self, model: Model, environment: Environment, outputs: int) -> None:
        """Takes one action and stores its result in the replay."""
        options = self._options
        epsilon = exploration(self._step, options)
        output = choose(model, self._obs, epsilon, outputs, self._rng)
        seen = environment.step(output)
        self._step += 1
        reward = sign(seen.reward) if options.clip_rewards else seen.reward
        done = seen.terminated or (seen.life_lost and options.life_loss_ends)
        self.replay.add(output, reward, done, seen.obs)
        self._obs = self._start_episode(environment) if seen.ended else seen.obs

    def _start_episode(self, environment: Environment, seed: int | None = None) -> Array:
        obs = environment.reset(seed)
        self.replay.begin(obs)
        return obs


def choose(model: Model, obs: Array, epsilon: float, outputs: int, rng: np.random.Generator) -> int:
    """Returns any output with probability ε, else argmax_a Q(s, a; θ)."""
    if rng.random() < epsilon:
        return int(rng.random() * outputs)
    return int(model.call("infer", x=obs[None])["output"].argmax())


def sign(points: float) -> float:
    """1, 0 or -1."""
    return float((points > 0) - (points < 0))


def outputs_for(model: Model, environment: Environment, name: str) -> int:
    """Returns the number of outputs of the model; raises if they cannot be actions of the game."""
    spec = environment.observation
    blank = np.zeros((1, *spec.shape), spec.dtype)
    outputs = int(model.call("infer", x=blank)["output"].shape[-1])
    if outputs != environment.actions and not environment.spare_outputs:
        raise TaskError(
            f"the branch has {outputs} outputs and the game {name!r} has {environment.actions} "
            "actions; they must be as many."
        )
    return outputs


def _game_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31 - 1))
