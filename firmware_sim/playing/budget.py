"""The size of a device's replay, and where it is kept."""

from __future__ import annotations

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import TaskError
from firmware_sim.playing.environments.environment import Environment
from firmware_sim.playing.options import PlayerOptions
from firmware_sim.playing.plain_replay import PlainReplay, entry_bytes
from firmware_sim.playing.replay import ENTRY_BYTES, MOST_FRAMES, StackedReplay, bytes_for
from firmware_sim.training.limits import stored_bytes

# Memory beside the replay and what the export measured, which includes the agent and two games:
# mini-batches, an index, and the difference between two runs.
PLAYER_BYTES = 6 * 2**20
LEAST_REPLAY_BYTES = 2**20


def make_replay(
    bundle: Bundle, options: PlayerOptions, environment: Environment
) -> StackedReplay | PlainReplay:
    """Returns a replay of the size that the user chose, or that the profile's caps leave."""
    if environment.stacked:
        return _stacked(bundle, options)
    if options.replay_folder is not None:
        raise TaskError("only Atari's replay can be kept on disk; that of other games is small.")
    spec, most = environment.observation, options.replay_frames
    if most is not None:
        return PlainReplay(spec, most * entry_bytes(spec), most=most)
    return PlainReplay(spec, memory_left(bundle), most=MOST_FRAMES)


def _stacked(bundle: Bundle, options: PlayerOptions) -> StackedReplay:
    frames, folder = options.replay_frames, options.replay_folder
    if folder is not None:
        if frames is None:
            frames = min(MOST_FRAMES, memory_left(bundle) // ENTRY_BYTES)
        try:
            return StackedReplay(storage_left(bundle), most_frames=frames, folder=folder)
        except OSError as error:
            raise TaskError(f"the replay cannot be kept in {folder} ({error.strerror}).") from None
    if frames is not None:
        return StackedReplay(bytes_for(frames), most_frames=frames)
    return StackedReplay(memory_left(bundle))


def memory_left(bundle: Bundle) -> int:
    """Returns the bytes for a replay: the profile's cap without training and playing."""
    profile, training = bundle.manifest.profile, bundle.measured.peak_bytes
    left = profile.memory_cap_mib * 2**20 - training - PLAYER_BYTES
    if left < LEAST_REPLAY_BYTES:
        raise TaskError(
            f"profile {profile.name} allows {profile.memory_cap_mib} MiB, of which training "
            f"takes {training / 2**20:.0f} MiB and playing {PLAYER_BYTES / 2**20:.0f} MiB, so no "
            "memory is left for a replay; take a smaller branch or a profile that allows more."
        )
    return left


def storage_left(bundle: Bundle) -> int:
    """Returns the bytes for a replay on disk: the cap without the bundle and its checkpoints."""
    profile = bundle.manifest.profile
    taken = stored_bytes(bundle.manifest)
    left = profile.storage_cap_mib * 2**20 - taken
    if left < LEAST_REPLAY_BYTES:
        raise TaskError(
            f"profile {profile.name} allows {profile.storage_cap_mib} MiB of disk, of which "
            f"the bundle and its checkpoints take {taken / 2**20:.0f} MiB, so none is left for a "
            "replay; keep it in memory, or take a profile that allows more."
        )
    return left
