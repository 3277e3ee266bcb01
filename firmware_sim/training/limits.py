"""The caps of a device's profile, kept while it runs.

Memory is the resident set of the whole process, by the kernel's high-water mark (VmHWM). The device
reads it between two steps, and at the cap it writes a checkpoint and ends with exit code 3. A hard
limit, RLIMIT_DATA, ends a process that grows faster (MemoryError in Python, an abort in the
runtime); the last checkpoint stays. RLIMIT_DATA counts memory that is mapped for writing, used or
not, so it is set to what is mapped at the start, plus what the cap leaves, plus headroom. For an
exact limit by the kernel, start the device in a cgroup with memory.max.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import resource
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from firmware_sim.bundle.manifest import Manifest, Tensor
from firmware_sim.bundle.reader import Bundle, files_of
from firmware_sim.errors import BundleError, LimitError
from firmware_sim.probe import memory_bytes, peak_memory_bytes
from profiles import load_profile

MIB = 2**20
HEADROOM_BYTES = 64 * MIB  # stacks of threads and heaps, which are mapped and hardly used
_FILE_OVERHEAD = 64 * 2**10  # bytes; names and counters in a checkpoint
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's mallopt
_LARGE_BLOCK = 128 * 2**10  # bytes; where glibc's own threshold begins


@dataclass(frozen=True)
class Caps:
    """The most memory and storage that the device may take."""

    memory_bytes: int
    storage_bytes: int

    def reached(self) -> bool:
        """Whether this process has ever used as much memory as its cap."""
        return peak_memory_bytes() >= self.memory_bytes


def caps_of(bundle: Bundle, memory_cap_mib: int | None = None) -> Caps:
    """Returns the caps of the bundle's profile; `memory_cap_mib` may lower that of memory."""
    profile = bundle.manifest.profile
    cap = profile.memory_cap_mib
    if memory_cap_mib is not None and not 1 <= memory_cap_mib <= cap:
        raise LimitError(
            f"a memory cap of {memory_cap_mib} MiB is not between 1 MiB and the {cap} MiB "
            f"of profile {profile.name}."
        )
    caps = Caps((memory_cap_mib or cap) * MIB, profile.storage_cap_mib * MIB)
    measured = bundle.manifest.measured
    if measured is not None and measured.peak_bytes >= caps.memory_bytes:
        raise LimitError(
            f"the bundle at {bundle.folder} took {measured.peak_bytes / MIB:.0f} MiB when it was "
            f"exported, and the memory cap is {caps.memory_bytes // MIB} MiB."
        )
    return caps


def check_profile(bundle: Bundle, name: str) -> None:
    """Raises `BundleError` if the bundle was exported for another profile, or an older version."""
    made_for, wanted = bundle.manifest.profile, load_profile(name)
    if made_for.name != wanted.name:
        raise BundleError(
            f"the bundle at {bundle.folder} was exported for profile {made_for.name}, "
            f"not for {wanted.name}."
        )
    was = asdict(made_for)
    for key, value in asdict(wanted).items():
        if was[key] != value:
            raise BundleError(
                f"profile {name} has changed since the bundle at {bundle.folder} was exported "
                f"({key} was {was[key]!r} and is {value!r}); export it again."
            )


def return_freed_memory() -> None:
    """Makes this process return every large block to the system as soon as it is freed.

    By default glibc raises its threshold to the largest block freed so far, up to 32 MiB: freed
    blocks below that stay resident in a heap into which later ones may not fit, and every thread
    has a heap of its own.
    """
    with contextlib.suppress(AttributeError):  # another C library, with rules of its own
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        set_option(_M_ARENA_MAX, 1)


def limit_data(caps: Caps) -> int:
    """Sets the hard limit of this process and its future children; returns it, in bytes."""
    left = max(0, caps.memory_bytes - memory_bytes("VmRSS"))
    wanted = memory_bytes("VmData") + left + HEADROOM_BYTES
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    return wanted


def check_storage(bundle: Bundle, state: Path, caps: Caps) -> None:
    """Raises `LimitError` if the bundle and its checkpoints exceed the cap of storage."""
    needed = stored_bytes(bundle.manifest)
    if needed > caps.storage_bytes:
        raise LimitError(
            f"the bundle and its checkpoint in {state} take {needed / MIB:.1f} MiB, and profile "
            f"{bundle.manifest.profile.name} allows {caps.storage_bytes / MIB:.0f} MiB."
        )


def stored_bytes(manifest: Manifest) -> int:
    """Returns the most bytes on disk: the bundle, and two checkpoints while one replaces the other.

    A checkpoint holds the state, the θ_shared at the start of the round, the last good one, the
    residual of rounding and an update.
    """
    files = sum(entry.bytes for name, entry in manifest.files.items() if name in files_of(manifest))
    state = _float32_bytes(manifest.tensors)
    shared = _float32_bytes(t for t in manifest.tensors if t.shared)
    return files + 2 * (state + 4 * shared + _FILE_OVERHEAD)


def _float32_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(4 * math.prod(tensor.shape) for tensor in tensors)
