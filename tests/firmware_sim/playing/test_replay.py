"""The replay gives back what was played, stacked as the player saw it."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.bundle.manifest import FileEntry, Measured, Tensor
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.make_task import TaskOptions
from firmware_sim.errors import BundleError, TaskError
from firmware_sim.playing.arena import CHUNK
from firmware_sim.playing.budget import PLAYER_BYTES, make_replay, memory_left, storage_left
from firmware_sim.playing.environments.atari import AtariGame, vector_environment
from firmware_sim.playing.frames import STACK
from firmware_sim.playing.replay import ENTRY_BYTES, Replay, Transitions, bytes_for
from profiles import load_profile
from tests.harness.manifests import MIB, a_manifest

Frames = npt.NDArray[np.uint8]
TINY = (2, 3)


def tiny(frames: int) -> Replay:
    return Replay(bytes_for(frames, TINY), most_frames=frames, frame=TINY)


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
def test_exactly_the_steps_in_the_ring_are_drawn_as_they_were_played(lengths: list[int]) -> None:
    capacity = 21
    replay = tiny(capacity)
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


def test_a_batch_has_the_shapes_and_types_that_training_takes() -> None:
    replay = tiny(10)
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


def test_the_generator_decides_what_is_drawn() -> None:
    replay = tiny(60)
    play(replay, [20, 10], np.random.default_rng(0))
    first, same, other = (
        drawn(replay.sample(np.random.default_rng(seed), 50)) for seed in (1, 1, 2)
    )
    assert first == same != other


def test_what_was_drawn_stays_when_the_ring_moves_on() -> None:
    replay = tiny(8)
    play(replay, [6], np.random.default_rng(0))
    batch = replay.sample(np.random.default_rng(0), 20)
    before = drawn(batch)
    play(replay, [6, 6], np.random.default_rng(1))
    assert drawn(batch) == before


def test_memory_is_used_again_once_nobody_holds_its_batch() -> None:
    replay = tiny(60)
    play(replay, [20, 10], np.random.default_rng(0))
    rng = np.random.default_rng(1)
    held = [replay.sample(rng, 5) for _ in range(4)]
    parts = [batch.next_obs[2:, 1] for batch in held]
    seen = [part.copy() for part in parts]
    assert len({batch.obs.ctypes.data for batch in held}) == 4
    del held
    for _ in range(9):
        replay.sample(rng, 5)
    for part, before in zip(parts, seen, strict=True):
        np.testing.assert_array_equal(part, before)
    del parts, part
    places = {replay.sample(rng, 5).obs.ctypes.data for _ in range(9)}
    assert len(places) <= 2
    assert replay.sample(rng, 7).obs.shape == (7, 2, 3, 4)


def test_stacks_equal_those_that_the_environment_shows() -> None:
    environment = vector_environment("breakout", 15)
    replay = Replay(bytes_for(100), most_frames=100)
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


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_the_budget_decides_how_many_steps_are_held(tmp_path: Path, on_disk: bool) -> None:
    """Against a plain list; frames of noise do not compress, others hardly change."""
    budget = 2**20
    replay = Replay(budget, folder=tmp_path if on_disk else None)
    rng = np.random.default_rng(0)
    canvas = np.zeros((84, 84), np.uint8)
    frames: list[Frames] = []
    behind: list[int] = []
    for number in range(1200):
        if number % 3 == 0 and number < 900:
            canvas = rng.integers(0, 256, (84, 84), dtype=np.uint8)
        canvas = canvas.copy()
        canvas[rng.integers(84), rng.integers(84)] = number % 251
        behind.append(0 if number % 97 == 0 else behind[-1] + 1)
        frames.append(canvas)
        if behind[-1]:
            replay.add(number, 0.5, False, canvas)
        else:
            replay.begin(canvas)
        assert replay.held_bytes <= budget + on_disk * replay.capacity * ENTRY_BYTES
    # 300 noisy frames of 7,056 bytes do not fit: about 75 do, with one key of each later chain.
    oldest = next(n for n in range(1200) if len(replay) == np.count_nonzero(behind[n:]))
    assert replay.full and 900 - 3 * 120 < oldest < 900 - 3 * 50
    batch = replay.sample(rng, 2000)
    numbers = batch.action.tolist()
    assert set(numbers) <= {n for n in range(oldest + STACK, 1200) if behind[n]}
    assert min(numbers) < oldest + 20 and max(numbers) > 1180
    black = np.zeros((84, 84), np.uint8)
    for obs, number, ahead in zip(batch.obs, numbers, batch.next_obs, strict=True):
        past = [frames[number - k] if k <= behind[number] else black for k in range(5)]
        np.testing.assert_array_equal(obs, np.stack(past[:0:-1], axis=-1))
        np.testing.assert_array_equal(ahead, np.stack(past[3::-1], axis=-1))
    assert list(tmp_path.iterdir()) == [], "a file without a name goes with the process"


def test_a_budget_for_frames_holds_so_many_even_of_noise() -> None:
    replay = Replay(bytes_for(150), most_frames=150)
    rng = np.random.default_rng(0)
    replay.begin(rng.integers(0, 256, (84, 84), dtype=np.uint8))
    for _ in range(400):
        replay.add(0, 0.0, False, rng.integers(0, 256, (84, 84), dtype=np.uint8))
    assert len(replay) == 150


def bundle(*, memory_mib: int = 256, storage_mib: int = 64, peak_mib: int = 90) -> Bundle:
    """As far as a replay is planned from it: a model of 2 MiB, and state of 1 MiB, half shared."""
    profile = replace(
        load_profile("weak"), name="own", memory_cap_mib=memory_mib, storage_cap_mib=storage_mib
    )
    manifest = a_manifest(
        profile=profile,
        measured=Measured("none", "0", 1, peak_mib * MIB, 0, 0.1),
        files={"model.tflite": FileEntry(2 * MIB, "")},
        tensors=(
            Tensor("shared", (2**17,), "float32", True, True, "f"),
            Tensor("own", (2**17,), "float32", True, False),
        ),
    )
    return Bundle(Path("own"), manifest)


def refusal(made: Bundle, options: TaskOptions) -> str:
    with pytest.raises(TaskError) as caught:
        make_replay(made, options, AtariGame("breakout", 1))
    return str(caught.value)


def replay_for(made: Bundle, options: TaskOptions | None = None) -> Replay:
    made_replay = make_replay(made, options or TaskOptions(), AtariGame("breakout", 1))
    assert isinstance(made_replay, Replay)
    return made_replay


def test_the_caps_decide_how_large_a_replay_is(tmp_path: Path) -> None:
    assert memory_left(bundle()) == (256 - 90) * 2**20 - PLAYER_BYTES
    # The checkpoint is there twice while it is replaced: 2 × (1 + 4 × 0.5) MiB, and a little.
    assert 0 < (64 - 2 - 6) * 2**20 - storage_left(bundle()) < 2**18
    assert replay_for(bundle()).capacity == 1_000_000
    assert replay_for(bundle(memory_mib=90 + 6 + 1)).capacity == 2**20 // 120
    small = TaskOptions(replay_frames=200)
    assert replay_for(bundle(memory_mib=1), small).capacity == 200, "the user has said so"
    on_disk = TaskOptions(replay_folder=tmp_path)
    assert replay_for(bundle(memory_mib=90 + 6 + 1), on_disk).capacity == 2**20 // ENTRY_BYTES


def test_without_room_one_sentence_says_so(tmp_path: Path) -> None:
    assert refusal(bundle(memory_mib=96), TaskOptions()) == (
        "profile own allows 96 MiB, of which training takes 90 MiB and playing 6 MiB, so no "
        "memory is left for a replay; take a smaller branch or a profile that allows more."
    )
    on_disk = TaskOptions(replay_folder=tmp_path)
    assert refusal(bundle(storage_mib=8), on_disk) == (
        "profile own allows 8 MiB of disk, of which the bundle and its checkpoints take 8 MiB, so "
        "none is left for a replay; keep it in memory, or take a profile that allows more."
    )
    (tmp_path / "file").touch()
    assert refusal(bundle(), TaskOptions(replay_folder=tmp_path / "file")) == (
        f"the replay cannot be kept in {tmp_path / 'file'} (File exists)."
    )
    sentence = r"^the manifest of own does not say how much memory training takes\.$"
    with pytest.raises(BundleError, match=sentence):
        replay_for(Bundle(Path("own"), a_manifest()))


def test_misuse_is_refused() -> None:
    for budget, frames in ((2**20, 5), (4 * CHUNK, 1000)):
        sentence = (
            f"a replay of {frames} frames in {budget} bytes is too small to draw stacks of 4 "
        )
        with pytest.raises(ValueError, match=f"^{sentence}from\\.$"):
            Replay(budget, most_frames=frames)
    replay = tiny(6)
    with pytest.raises(ValueError, match=r"^there is no step to draw yet\.$"):
        replay.sample(np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match=r"^an episode begins with a frame, not with a step\.$"):
        replay.add(0, 0.0, False, frame(0))
    replay.begin(frame(0))
    with pytest.raises(ValueError, match=r"^there is no step to draw yet\.$"):
        replay.sample(np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match=r"^an episode has at least one step\.$"):
        replay.begin(frame(1))
