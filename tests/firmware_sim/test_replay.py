"""The replay gives back what was played, stacked as the player saw it."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.replay import Replay, Transitions

Frames = npt.NDArray[np.uint8]
STACK = 4


@dataclass(frozen=True)
class Played:
    """A step as a player would note it down, with whole stacks; frames have numbers."""

    obs: tuple[int, ...]
    action: int
    reward: float
    next_obs: tuple[int, ...]
    done: float


def frame(number: int) -> Frames:
    """2×3 pixels that differ from each other and from those of any other frame below 40."""
    return (np.arange(6, dtype=np.uint8).reshape(2, 3) + 6 * number + 1).astype(np.uint8)


def number(pixels: Frames) -> int:
    """The number of a frame; 0 is black."""
    found = (int(pixels[0, 0]) + 5) // 6
    np.testing.assert_array_equal(pixels, frame(found - 1) if found else np.zeros((2, 3)))
    return found


def plain_stack(episode: list[int]) -> tuple[int, ...]:
    return tuple(([0] * STACK + episode)[-STACK:])


def play(replay: Replay, lengths: list[int], rng: np.random.Generator) -> list[Played | None]:
    """Episodes of these many steps; the answer is what each stored frame was arrived by."""
    entries: list[Played | None] = []
    for length in lengths:
        episode: list[int] = []
        for step in range(length + 1):
            new = len(entries) % 40
            episode.append(new + 1)
            if step == 0:
                replay.begin(frame(new))
                entries.append(None)
                continue
            action, reward = int(rng.integers(6)), float(rng.integers(-1, 2))
            done = step == length and bool(rng.integers(2))
            replay.add(action, reward, done, frame(new))
            stacks = plain_stack(episode[:-1]), plain_stack(episode)
            entries.append(Played(stacks[0], action, reward, stacks[1], float(done)))
    return entries


def drawn(batch: Transitions) -> list[Played]:
    return [
        Played(
            tuple(number(obs[..., k]) for k in range(STACK)),
            int(action),
            float(reward),
            tuple(number(ahead[..., k]) for k in range(STACK)),
            float(done),
        )
        for obs, action, reward, ahead, done in zip(
            batch.obs, batch.action, batch.reward, batch.next_obs, batch.done, strict=True
        )
    ]


@pytest.mark.parametrize(
    "lengths",
    [[1], [2, 1, 3], [9, 1, 1, 6], [30], [7, 1, 4, 12, 2, 1, 1, 9], [1] * 30, [19, 1], [20], [100]],
    ids=str,
)
def test_exactly_the_steps_in_the_ring_are_drawn_as_they_were_played(lengths: list[int]):
    capacity = 21
    replay = Replay(capacity, frame=(2, 3), stack=STACK)
    entries = play(replay, lengths, np.random.default_rng(len(lengths)))
    oldest = max(0, len(entries) - capacity)
    assert len(replay) == sum(entry is not None for entry in entries[oldest:])
    # In a full ring the oldest frames only serve as the past of later ones.
    first = oldest + STACK if oldest else 0
    expected = Counter(entry for entry in entries[first:] if entry is not None)
    size = 600
    found = Counter(drawn(replay.sample(np.random.default_rng(1), size)))
    assert found.keys() == expected.keys()
    # Uniform: each count is within six standard deviations of its mean.
    total = expected.total()
    for played, times in expected.items():
        p = times / total
        assert abs(found[played] - size * p) <= 6 * np.sqrt(size * p * (1 - p))


def test_a_batch_has_the_shapes_and_types_that_training_takes():
    replay = Replay(10, frame=(2, 3), stack=STACK)
    play(replay, [5], np.random.default_rng(0))
    batch = replay.sample(np.random.default_rng(0), 7)
    types = {name: (value.dtype.name, value.shape) for name, value in vars(batch).items()}
    assert types == {
        "obs": ("uint8", (7, 2, 3, 4)),
        "action": ("int32", (7,)),
        "reward": ("float32", (7,)),
        "next_obs": ("uint8", (7, 2, 3, 4)),
        "done": ("float32", (7,)),
    }


def test_the_generator_decides_what_is_drawn():
    replay = Replay(60, frame=(2, 3), stack=STACK)
    play(replay, [20, 10], np.random.default_rng(0))
    first, same, other = (
        drawn(replay.sample(np.random.default_rng(seed), 50)) for seed in (1, 1, 2)
    )
    assert first == same != other


def test_what_was_drawn_stays_when_the_ring_moves_on():
    replay = Replay(8, frame=(2, 3), stack=STACK)
    play(replay, [6], np.random.default_rng(0))
    batch = replay.sample(np.random.default_rng(0), 20)
    before = drawn(batch)
    play(replay, [6, 6], np.random.default_rng(1))
    assert drawn(batch) == before


def test_stacks_equal_those_that_the_environment_shows():
    from ale_py.vector_env import AtariVectorEnv

    environment = AtariVectorEnv("breakout", num_envs=1, max_num_frames_per_episode=60)
    replay = Replay(100)
    rng = np.random.default_rng(0)
    seen: list[tuple[Frames, Frames]] = []  # a step's place here is stored as its action
    for episode in range(4):
        obs, _ = environment.reset(seed=episode)
        replay.begin(obs[0, -1])
        ended = False
        while not ended:
            ahead, _, terminated, truncated, _ = environment.step(rng.integers(0, 4, 1))
            replay.add(len(seen), 0.0, bool(terminated[0]), ahead[0, -1])
            seen.append((obs[0].copy(), ahead[0].copy()))
            obs, ended = ahead, bool(terminated[0] or truncated[0])
    environment.close()
    assert len(replay) == len(seen) == 4 * 15  # 60 frames, four per step
    batch = replay.sample(rng, 600)
    assert set(batch.action.tolist()) == set(range(60))
    for obs, step, ahead in zip(batch.obs, batch.action, batch.next_obs, strict=True):
        np.testing.assert_array_equal(obs.transpose(2, 0, 1), seen[step][0])
        np.testing.assert_array_equal(ahead.transpose(2, 0, 1), seen[step][1])
    assert not any(obs[:3].any() for obs, _ in seen[::15]), "episodes begin with black frames"


def test_misuse_is_refused():
    with pytest.raises(ValueError, match=r"^a replay of 5 frames holds no stack of 4 to draw\.$"):
        Replay(5)
    replay = Replay(6, frame=(2, 3))
    with pytest.raises(ValueError, match=r"^there is no step to draw yet\.$"):
        replay.sample(np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match=r"^an episode begins with a frame, not with a step\.$"):
        replay.add(0, 0.0, False, frame(0))
    replay.begin(frame(0))
    with pytest.raises(ValueError, match=r"^there is no step to draw yet\.$"):
        replay.sample(np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match=r"^an episode has at least one step\.$"):
        replay.begin(frame(1))
