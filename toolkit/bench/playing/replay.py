"""`toolkit bench replay`: the costs of a player's replay buffer.

    codecs   size and time of a frame with several codecs, on frames of a random player
    device   sampling compared with a training step, and the peak of a device with a full replay

Times are CPU times, so that other programs on the machine do not count. lz4 and zstandard are
measured if they are installed; a device does not need them.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from firmware_sim.playing.arena import CHUNK, MemoryArena
from firmware_sim.playing.environments.atari import AtariGame
from firmware_sim.playing.frames import STACK, Frames
from firmware_sim.playing.options import DqnOptions
from firmware_sim.playing.replay import bytes_for
from firmware_sim.tensor_spec import Array
from toolkit.bench.contest import BATCH, Progress
from toolkit.fresh_process import report_of

GAMES = ("breakout", "beam_rider", "space_invaders")
OUTPUTS = 6  # of the zoo's branches
OURS = "keys and changes"
Codec = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def run_bench(
    *, frames: int, steps: int, batches: int, on_disk: bool, progress: Progress
) -> dict[str, Any]:
    """Measures codecs on `frames` of each game, and devices with `steps` in their replay."""
    report: dict[str, Any] = {"frames": frames, "games": {}, "devices": []}
    for game in GAMES:
        progress(f"{game}: codecs on {frames} frames")
        film = np.stack(list(itertools.islice(random_play(game), frames)))
        report["games"][game] = {
            "grey_levels": len(np.unique(film)),
            "codecs": {name: _measure(codec, film) for name, codec in _codecs().items()}
            | {OURS: _measure_ours(film)},
        }
    with tempfile.TemporaryDirectory() as folder:
        progress("exporting atari-lightweight")
        bundle = _export(Path(folder) / "bundle")
        for game in GAMES:
            progress(f"{game}: a device plays {steps} steps and trains on {batches} batches")
            report["devices"].append(_device(bundle, game, steps, batches, None))
        if on_disk:
            progress(f"{GAMES[0]}: the same with the replay on disk")
            disk = Path(folder) / "replay"
            report["devices"].append(_device(bundle, GAMES[0], steps, batches, disk))
    return report


def tables(report: dict[str, Any]) -> list[Table | str]:
    """Returns a table of codecs and one of devices."""
    codecs = Table(
        *("game", "codec", "bytes of a frame", "ratio", "compress", "decompress"),
        f"{BATCH * (STACK + 1)} frames",
    )
    for game, result in report["games"].items():
        for name, found in result["codecs"].items():
            codecs.add_row(
                game,
                name,
                f"{found['bytes']:.0f}",
                f"{found['ratio']:.1f}",
                f"{found['compress_mb_s']:.0f} MB/s",
                f"{found['decompress_mb_s']:.0f} MB/s" if found["decompress_mb_s"] else "",
                f"{found['batch_seconds'] * 1e3:.2f} ms" if found["batch_seconds"] else "",
            )
    devices = Table("game", "replay", "steps", "takes", "sample", "step", "of a step", "peak")
    for found in report["devices"]:
        devices.add_row(
            found["game"],
            "disk" if found["on_disk"] else "memory",
            f"{found['steps']:,}",
            f"{found['held_bytes'] / 2**20:.1f} MiB",
            f"{found['sample_seconds'] * 1e3:.2f} ms",
            f"{found['step_seconds'] * 1e3:.1f} ms",
            f"{found['sample_to_step']:.1%}",
            f"{found['peak_bytes'] / 2**20:.0f} MiB",
        )
    levels = ", ".join(f"{g} {r['grey_levels']}" for g, r in report["games"].items())
    return [codecs, f"grey levels: {levels}; 4 bits hold 16", devices]


def random_play(game: str) -> Iterator[Array]:
    """Yields frames uint8 [84, 84] of a player with random actions, episode after episode."""
    rng = np.random.default_rng(0)
    with closing(AtariGame(game, DqnOptions().episode_steps)) as playing:
        yield playing.reset(0)[..., -1]
        while True:
            seen = playing.step(int(rng.integers(OUTPUTS)))
            yield seen.obs[..., -1]
            if seen.ended:
                yield playing.reset()[..., -1]


def _codecs() -> dict[str, Codec]:
    """Returns the codecs; each compresses single frames."""
    found: dict[str, Codec] = {
        "zlib 1": (lambda frame: zlib.compress(frame, 1), zlib.decompress),
        "zlib 6": (lambda frame: zlib.compress(frame, 6), zlib.decompress),
        "deflate 6, fixed codes": (_fixed, lambda record: zlib.decompress(record, -13)),
    }
    try:
        lz4 = importlib.import_module("lz4.frame")
        found["lz4"] = (lz4.compress, lz4.decompress)
    except ImportError:
        pass
    try:
        zstd = importlib.import_module("zstandard")
        found["zstd 3"] = (
            zstd.ZstdCompressor(level=3).compress,
            zstd.ZstdDecompressor().decompress,
        )
    except ImportError:
        pass
    return found


def _fixed(frame: bytes) -> bytes:
    deflate = zlib.compressobj(6, wbits=-13, strategy=zlib.Z_FIXED)
    return deflate.compress(frame) + deflate.flush()


def _measure(codec: Codec, film: Array) -> dict[str, Any]:
    compress, decompress = codec
    frames = [frame.tobytes() for frame in film]
    begin = time.process_time()
    records = [compress(frame) for frame in frames]
    compressed = time.process_time()
    for record in records:
        decompress(record)
    seconds = time.process_time() - compressed
    return _figures(film, sum(map(len, records)), compressed - begin) | {
        "decompress_mb_s": film.nbytes / seconds / 1e6,
        "batch_seconds": BATCH * (STACK + 1) * seconds / len(film),
    }


def _measure_ours(film: Array) -> dict[str, Any]:
    """Measures our codec, which decodes whole batches; there is no time of a single frame."""
    size = (film.shape[1], film.shape[2])
    chunks = bytes_for(len(film)) // CHUNK
    kept = Frames(size, most=len(film), chunks=chunks, arena=MemoryArena())
    begin = time.process_time()
    for frame in film:
        kept.append(frame)
    seconds = time.process_time() - begin
    rng = np.random.default_rng(0)
    batches = []
    out = np.empty((2, BATCH, kept.pixels), np.uint32)
    for _ in range(50):
        newest = rng.integers(STACK, len(film), BATCH)
        drawing = time.process_time()
        kept.stacks(newest, out)
        batches.append(time.process_time() - drawing)
    return _figures(film, kept.stored_bytes, seconds) | {
        "decompress_mb_s": None,
        "batch_seconds": statistics.median(batches),
    }


def _figures(film: Array, stored: int, seconds: float) -> dict[str, float]:
    return {
        "bytes": stored / len(film),
        "ratio": film.nbytes / stored,
        "compress_mb_s": film.nbytes / seconds / 1e6,
    }


def _export(folder: Path) -> Path:
    # TensorFlow is loaded only now, when there is something to export.
    from profiles import load_profile
    from toolkit.bench.zoo_bundles import build_branch, export_branch

    branch = build_branch("atari", "lightweight")
    return export_branch(branch, "atari", load_profile("gateway"), folder).folder


def _device(
    bundle: Path, game: str, steps: int, batches: int, folder: Path | None
) -> dict[str, Any]:
    command = [sys.executable, "-m", "toolkit.bench.playing.replay_process", str(bundle), game]
    command += [str(steps), str(batches), *([str(folder)] if folder else [])]
    report = report_of(command, failure=f"the player of {game} failed")
    pairs = zip(report["sample_seconds"], report["step_seconds"], strict=True)
    return report | {
        "sample_to_step": statistics.median(sample / step for sample, step in pairs),
        "sample_seconds": statistics.median(report["sample_seconds"]),
        "step_seconds": statistics.median(report["step_seconds"]),
    }
