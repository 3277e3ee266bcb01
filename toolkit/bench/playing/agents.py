"""The same agent in ordinary Keras and TensorFlow, timed; for `toolkit bench rl`.

    python -m toolkit.bench.playing.agents AGENT TASK BRANCH GAME WARM_UP STEPS THREADS

    keras         acts by predict_on_batch, learns by train_on_batch; targets computed in numpy
    tf.function   acts and learns by compiled functions, one of them for the whole step

Both play the same games as a device and keep steps in a deque. The output is one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from firmware_sim.playing.environments import make_environment
from firmware_sim.playing.player import game_of
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.tensor_spec import Array
from toolkit import zoo
from toolkit.bench.contest import BATCH
from toolkit.bench.playing.timing import bench_options, timed
from toolkit.bench.step.reference import Reference, keras_optimizer
from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ

Step = tuple[Array, int, float, Array, float]  # obs, action, reward, next_obs, done


class Agent(Protocol):
    def act(self, obs: Array) -> int: ...

    def learn(
        self, obs: Array, action: Array, reward: Array, next_obs: Array, done: Array
    ) -> float: ...


class KerasAgent:
    """An agent as in most tutorials."""

    def __init__(self, branch: Branch) -> None:
        assert isinstance(branch.learning, DoubleQ)
        self._learning = branch.learning
        self._scale = branch.input_scale
        self._online = branch.model
        self._target = keras.models.clone_model(self._online)
        self._target.set_weights(self._online.get_weights())
        self._online.compile(optimizer=keras_optimizer(branch.learning.optimizer), loss=self._loss)

    def act(self, obs: Array) -> int:
        return int(np.argmax(self._online.predict_on_batch(self._scaled(obs[None]))[0]))

    def learn(
        self, obs: Array, action: Array, reward: Array, next_obs: Array, done: Array
    ) -> float:
        now, ahead, rows = self._scaled(obs), self._scaled(next_obs), np.arange(len(obs))
        best = np.argmax(self._online.predict_on_batch(ahead), axis=-1)
        future = self._target.predict_on_batch(ahead)[rows, best]
        wanted = self._online.predict_on_batch(now)
        wanted[rows, action] = reward + self._learning.discount * (1 - done) * future
        return float(self._online.train_on_batch(now, wanted))

    def _loss(self, wanted: Any, q: Any) -> Any:
        """Only the chosen action has an error, so the sum over actions is its loss."""
        actions = q.shape[-1]
        return actions * keras.losses.huber(wanted, q, delta=self._learning.huber_delta)

    def _scaled(self, obs: Array) -> Array:
        return obs.astype(np.float32) * np.float32(self._scale)


class CompiledAgent:
    """An agent whose functions TensorFlow compiles."""

    def __init__(self, branch: Branch) -> None:
        self._reference = Reference(branch)
        self._scale = branch.input_scale
        self._train = tf.function(self._reference.train, autograph=False, reduce_retracing=True)
        self._best = tf.function(self._argmax, autograph=False)

    def act(self, obs: Array) -> int:
        return int(self._best(tf.constant(obs[None])))

    def learn(
        self, obs: Array, action: Array, reward: Array, next_obs: Array, done: Array
    ) -> float:
        batch = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": done}
        return float(self._train(**{name: tf.constant(value) for name, value in batch.items()}))

    def _argmax(self, obs: tf.Tensor) -> tf.Tensor:
        return tf.argmax(self._reference.model(tf.cast(obs, tf.float32) * self._scale)[0])


AGENTS: dict[str, Callable[[Branch], Agent]] = {"keras": KerasAgent, "tf.function": CompiledAgent}


class Player:
    """Acts, stores steps and, after the warm-up, learns from one mini-batch per step."""

    def __init__(self, agent: Agent, game: str, warm_up: int) -> None:
        self._agent = agent
        self._options = bench_options(game, warm_up)
        self._environment = make_environment(game, self._options.episode_steps)
        self._rng = np.random.default_rng(0)
        self._memory: deque[Step] = deque(maxlen=1_000_000)
        self._obs = self._environment.reset(0)

    def play(self, outputs: int) -> None:
        greedy = self._rng.random() >= self._options.last_exploration
        action = self._agent.act(self._obs) if greedy else int(self._rng.integers(outputs))
        seen = self._environment.step(action)
        reward = float(np.sign(seen.reward)) if self._options.clip_rewards else seen.reward
        self._memory.append((self._obs, action, reward, seen.obs, float(seen.terminated)))
        self._obs = self._environment.reset() if seen.ended else seen.obs

    def learn(self) -> None:
        chosen = [self._memory[i] for i in self._rng.integers(len(self._memory), size=BATCH)]
        obs, action, reward, next_obs, done = map(np.array, zip(*chosen, strict=True))
        self._agent.learn(
            obs,
            action.astype(np.int32),
            reward.astype(np.float32),
            next_obs,
            done.astype(np.float32),
        )

    def train(self, steps: int, outputs: int) -> None:
        for _ in range(steps):
            self.play(outputs)
            while len(self._memory) < self._options.warm_up_steps:
                self.play(outputs)
            self.learn()


def main(
    agent: str, task: str, kind: str, game: str, warm_up: int, steps: int, threads: int
) -> dict[str, Any]:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    branch = zoo.build(task, kind, game=game if task == "minatar" else None)
    outputs = int(branch.model.output_shape[-1])
    player = Player(AGENTS[agent](branch), game_of(task, game), warm_up)
    player.train(2, outputs)  # the warm-up, and what is prepared in the first steps
    return timed(lambda: player.train(steps, outputs), steps) | {"peak_bytes": peak_memory_bytes()}


if __name__ == "__main__":
    agent_name, task_name, branch_name, game_name, *numbers = sys.argv[1:]
    print(json.dumps(main(agent_name, task_name, branch_name, game_name, *map(int, numbers))))
