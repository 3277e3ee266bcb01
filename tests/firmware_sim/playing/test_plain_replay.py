"""The replay of small observations gives back what was played, by a slow list of all steps."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.playing.plain_replay import PlainReplay, entry_bytes
from firmware_sim.tensor_spec import TensorSpec

SPEC = TensorSpec((2, 3), np.dtype(np.float32))
Step = tuple[float, int, float, float, float]  # obs, action, reward, next_obs, done


def observation(number: int) -> npt.NDArray[np.float32]:
    return np.full((2, 3), number, np.float32)


def small(most: int) -> PlainReplay:
    return PlainReplay(SPEC, most * entry_bytes(SPEC), most=most)


def play(replay: PlainReplay, lengths: list[int]) -> list[Step | None]:
    """Episodes of so many steps; of each entry the step that led to it."""
    rng, entries = np.random.default_rng(5), list[Step | None]()
    for length in lengths:
        replay.begin(observation(len(entries)))
        entries.append(None)
        for step in range(length):
            now = len(entries)
            action, reward = int(rng.integers(5)), float(rng.normal())
            done = step + 1 == length and bool(rng.integers(2))
            replay.add(action, reward, done, observation(now))
            entries.append((now - 1, action, float(np.float32(reward)), now, float(done)))
    return entries


def drawn(replay: PlainReplay, count: int) -> Counter[Step]:
    batch = replay.sample(np.random.default_rng(1), count)
    assert batch.obs.dtype == batch.next_obs.dtype == batch.reward.dtype == np.float32
    assert (batch.action.dtype, batch.done.dtype) == (np.int32, np.float32)
    for stack in (batch.obs, batch.next_obs):
        assert stack.shape == (count, 2, 3)
        assert (stack == stack[:, :1, :1]).all(), "an observation is never a mixture of two"
    parts = (batch.obs[:, 0, 0], batch.action, batch.reward, batch.next_obs[:, 0, 0], batch.done)
    return Counter(zip(*(part.tolist() for part in parts), strict=True))


@pytest.mark.parametrize("most", [4, 7, 16, 40, 200])
@pytest.mark.parametrize("lengths", [[30], [1] * 20, [3, 1, 9, 2, 2, 14, 1, 6]])
def test_steps_are_drawn_evenly_and_as_they_were_played(most: int, lengths: list[int]) -> None:
    replay = small(most)
    entries = play(replay, lengths)
    held = entries[-most:]
    assert len(replay) == sum(entry is not None for entry in held)
    assert replay.full == (len(entries) > most)
    wanted = {entry for entry in held[1:] if entry is not None}  # the oldest has none before it
    found = drawn(replay, 300 * len(wanted))
    assert found.keys() == wanted
    assert min(found.values()) > 200 and max(found.values()) < 400


def test_it_keeps_to_its_budget() -> None:
    assert entry_bytes(SPEC) == 24 + 13
    assert PlainReplay(SPEC, 1000, most=10**6).capacity == 1000 // 37
    with pytest.raises(ValueError, match=r"^a replay of 9 observations in 99 bytes is too small"):
        PlainReplay(SPEC, 99, most=9)


def test_what_is_drawn_is_a_copy() -> None:
    replay = small(4)
    play(replay, [3])
    before = replay.sample(np.random.default_rng(0), 8)
    kept = before.obs.copy()
    play(replay, [9])
    np.testing.assert_array_equal(before.obs, kept)


def test_misuse_is_refused() -> None:
    replay = small(6)
    with pytest.raises(ValueError, match=r"^an episode begins with an observation, not with"):
        replay.add(0, 0.0, False, observation(0))
    replay.begin(observation(0))
    with pytest.raises(ValueError, match=r"^there is no step to draw yet\.$"):
        replay.sample(np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match=r"^an episode has at least one step\.$"):
        replay.begin(observation(1))
