"""Plays an Atari game and learns from it by double deep Q-learning.

The arithmetic (target, loss, optimiser) is in the bundle's `train`; here is the player. Every
step it acts, stores what came of it, and, once the replay is warm, trains on one mini-batch.

The replay and the game in progress are too large to be part of the state: after a restart the
player goes on with its count of steps, hence with its ε, and fills a new replay first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from firmware_sim.bundle import Bundle
from firmware_sim.limits import stored_bytes
from firmware_sim.replay import ENTRY_BYTES, MOST_FRAMES, Replay, bytes_for
from firmware_sim.runtime import Array, Model, TensorSpec
from firmware_sim.steps import batch_size, take_batch
from firmware_sim.tasks.state import digest, pack, unpack
from firmware_sim.tasks.task import TaskError, TaskOptions, signature_for, training_inputs

OBSERVATION = TensorSpec((84, 84, 4), np.dtype(np.uint8))
EXPLORATION_STEPS = 1_000_000
TEST_EXPLORATION = 0.02
EPISODE_FRAMES = 108_000  # most of one training episode: half an hour of play at 60 Hz
NOOP = 0
# What a device takes beside the replay and what the export has measured, which includes the agent
# and two games: mini-batches, an index, and how unlike two runs are.
PLAYER_BYTES = 6 * 2**20
LEAST_REPLAY_BYTES = 2**20


def exploration(step: int) -> float:
    """ε of a step, counted from the first ever: 1.0 → 0.1, linear, then 0.1."""
    return max(0.1, 1.0 - 0.9 * step / EXPLORATION_STEPS)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a step led to."""

    obs: Array  # uint8 [84, 84, 4], the oldest frame first
    reward: float  # points, as the game counts them
    terminated: bool  # the game is over
    ended: bool  # so is the episode: terminated, or cut off at its greatest length


class Game:
    """One game in ale-py: four frames per action, grey 84×84, no sticky actions.

    Branches have as many outputs for every game. An output that the game has no action for does
    nothing; if there are fewer outputs than actions, the last actions are never taken.
    """

    def __init__(self, name: str, *, episode_frames: int) -> None:
        try:
            from ale_py import roms
            from ale_py.vector_env import AtariVectorEnv
        except ImportError:
            raise TaskError(
                "the task atari plays with ale-py and gymnasium; install both."
            ) from None
        if name not in roms.get_all_rom_ids():
            raise TaskError(
                f"there is no game {name!r}; names are written as space_invaders is, "
                "and ale_py.roms.get_all_rom_ids() lists them."
            )
        self._environment = AtariVectorEnv(
            name,
            num_envs=1,
            max_num_frames_per_episode=episode_frames,
            repeat_action_probability=0.0,
            frameskip=4,
            reward_clipping=False,  # scores are in points; training takes their sign
        )
        self._actions = int(self._environment.single_action_space.n)

    def reset(self, seed: int | None = None) -> Array:
        """A new episode; without a seed the game's own random numbers go on."""
        frames, _ = self._environment.reset(seed=seed)
        return _channels_last(frames)

    def step(self, output: int) -> Seen:
        action = output if output < self._actions else NOOP
        frames, reward, terminated, truncated, _ = self._environment.step(np.array([action]))
        over = bool(terminated[0])
        return Seen(_channels_last(frames), float(reward[0]), over, over or bool(truncated[0]))

    def close(self) -> None:
        self._environment.close()


class AtariTask:
    """A player of one game, with its replay."""

    def __init__(self, bundle: Bundle, options: TaskOptions) -> None:
        self._options = options
        self._bundle = bundle
        self._batch = _batch_size(bundle)
        self._digest = digest(np.frombuffer(f"atari {options.game}".encode(), np.uint8))
        self._begin(options.seed, 0)

    @property
    def samples(self) -> int:
        return len(self.replay)

    def train(self, model: Model, steps: int, exchange: str) -> Iterator[float]:
        return self._learn(model, steps, signature_for(exchange))

    def evaluate(self, model: Model) -> dict[str, float]:
        """The points of one test episode, which the seed and the count of steps decide."""
        rng = np.random.default_rng((self._seed, self._step, 1))
        outputs = _outputs(model)
        frames = self._options.test_frames
        with closing(Game(self._options.game, episode_frames=frames)) as game:
            obs, score, ended = game.reset(_game_seed(rng)), 0.0, False
            while not ended:
                seen = game.step(choose(model, obs, TEST_EXPLORATION, outputs, rng))
                obs, score, ended = seen.obs, score + seen.reward, seen.ended
        return {"score": score}

    def state(self) -> dict[str, Array]:
        return pack(self._digest, seed=self._seed, step=self._step)

    def restore(self, state: Mapping[str, Array]) -> None:
        seed, step = unpack(state, self._digest, "seed", "step")
        del self.replay  # before there is another: there is room for one
        self._begin(seed, step)

    def synchronised(self, model: Model) -> None:
        """θ⁻ ← θ: what was merged goes into the target network too."""
        model.call("sync_target")

    def _begin(self, seed: int, step: int) -> None:
        self._seed = seed
        self._step = step  # actions taken, ever
        self._rng = np.random.default_rng((seed, step))
        self.replay = make_replay(self._bundle, self._options)
        self._game = Game(self._options.game, episode_frames=EPISODE_FRAMES)
        self._obs = self._start_episode(_game_seed(self._rng))

    def _learn(self, model: Model, steps: int, signature: str) -> Iterator[float]:
        outputs = _outputs(model)
        for _ in range(steps):
            self._play(model, outputs)
            while len(self.replay) < self._options.warm_up_steps and not self.replay.full:
                self._play(model, outputs)
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

    def _play(self, model: Model, outputs: int) -> None:
        """One action, and what came of it goes into the replay."""
        output = choose(model, self._obs, exploration(self._step), outputs, self._rng)
        seen = self._game.step(output)
        self._step += 1
        self.replay.add(output, np.sign(seen.reward), seen.terminated, seen.obs[..., -1])
        self._obs = self._start_episode() if seen.ended else seen.obs

    def _start_episode(self, seed: int | None = None) -> Array:
        obs = self._game.reset(seed)
        self.replay.begin(obs[..., -1])
        return obs


def make_replay(bundle: Bundle, options: TaskOptions) -> Replay:
    """As many frames as the user says, else as many as fit what the profile's caps leave."""
    frames, folder = options.replay_frames, options.replay_folder
    if folder is not None:
        if frames is None:
            frames = min(MOST_FRAMES, memory_left(bundle) // ENTRY_BYTES)
        try:
            return Replay(storage_left(bundle), most_frames=frames, folder=folder)
        except OSError as error:
            raise TaskError(f"the replay cannot be kept in {folder} ({error.strerror}).") from None
    if frames is not None:
        return Replay(bytes_for(frames), most_frames=frames)
    return Replay(memory_left(bundle))


def memory_left(bundle: Bundle) -> int:
    """Bytes for a replay: the profile's cap without what training and playing take."""
    profile = bundle.manifest["profile"]
    try:
        training = int(bundle.manifest["measured"]["peak_bytes"])
    except (KeyError, TypeError, ValueError):
        raise TaskError(
            f"the manifest of {bundle.folder} does not say how much memory training takes."
        ) from None
    left = int(profile["memory_cap_mib"] * 2**20) - training - PLAYER_BYTES
    if left < LEAST_REPLAY_BYTES:
        raise TaskError(
            f"profile {profile['name']} allows {profile['memory_cap_mib']} MiB, of which training "
            f"takes {training / 2**20:.0f} MiB and playing {PLAYER_BYTES / 2**20:.0f} MiB, so no "
            "memory is left for a replay; take a smaller branch or a profile that allows more."
        )
    return left


def storage_left(bundle: Bundle) -> int:
    """Bytes for a replay on disk: the profile's cap without the bundle and its checkpoints."""
    profile = bundle.manifest["profile"]
    taken = stored_bytes(bundle.manifest)
    left = int(profile["storage_cap_mib"] * 2**20) - taken
    if left < LEAST_REPLAY_BYTES:
        raise TaskError(
            f"profile {profile['name']} allows {profile['storage_cap_mib']} MiB of disk, of which "
            f"the bundle and its checkpoints take {taken / 2**20:.0f} MiB, so none is left for a "
            "replay; keep it in memory, or take a profile that allows more."
        )
    return left


def choose(model: Model, obs: Array, epsilon: float, outputs: int, rng: np.random.Generator) -> int:
    """With probability ε any output, else argmax_a Q(s, a; θ)."""
    if rng.random() < epsilon:
        return int(rng.integers(outputs))
    return int(np.argmax(model.call("infer", x=obs[None])["output"][0]))


def _outputs(model: Model) -> int:
    blank = np.zeros((1, *OBSERVATION.shape), OBSERVATION.dtype)
    return int(model.call("infer", x=blank)["output"].shape[-1])


def _batch_size(bundle: Bundle) -> int:
    inputs = training_inputs(bundle)
    if "obs" not in inputs:
        raise TaskError(
            "the task atari needs a bundle that learns by double Q-learning; "
            f"the one at {bundle.folder} trains on {', '.join(inputs)}."
        )
    obs = inputs["obs"]
    if (obs.shape[1:], obs.dtype) != (OBSERVATION.shape, OBSERVATION.dtype):
        raise TaskError(
            f"the task atari shows {OBSERVATION.dtype}{list(OBSERVATION.shape)}; the bundle at "
            f"{bundle.folder} takes {obs.dtype}{list(obs.shape[1:])}."
        )
    return batch_size(bundle)


def _channels_last(frames: Array) -> Array:
    """[1, 4, 84, 84] to [84, 84, 4]."""
    return np.ascontiguousarray(frames[0].transpose(1, 2, 0))


def _game_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31 - 1))
