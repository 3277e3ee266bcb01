"""CIFAR-10 from the publisher's files: the python version, or the binary one.

The python version is pickled, and unpickling can run any code. So a file is unpickled only if it
is, byte for byte, the publisher's.
"""

from __future__ import annotations

import hashlib
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firmware_sim.errors import TaskError
from firmware_sim.tasks.labelled import Examples, own_numbers
from firmware_sim.tensor_spec import Array, TensorSpec

EXAMPLE = TensorSpec((32, 32, 3), np.dtype(np.uint8))
CLASSES = 10
PER_FILE = 10_000  # images
RECORD = 1 + 3 * 32 * 32  # bytes of the binary version: the label, then red, green and blue rows
PICKLE_LIMIT = 32 * 2**20  # bytes; the publisher's files have 31,035,999 at most
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
TEST = "test_batch"
TRAINING = [name for name in MD5 if name != TEST]
UNPACKED = ("cifar-10-batches-py", "cifar-10-batches-bin")  # folders inside the archives


@dataclass(frozen=True)
class BatchFile:
    """A file of the folder or of the archive; it is read only if its size is plausible."""

    name: str
    where: str  # for messages
    size: int  # bytes
    read: Callable[[], bytes]


def read_cifar10(source: Path, share: tuple[float, float] | None = None) -> Examples:
    """Returns 50,000 images to train on and 10,000 to test with, as uint8 [n, 32, 32, 3].

    `source` is the publisher's archive, or a folder unpacked from it. With a `share` the result is
    that of `own_share`, and no more is in memory than it, the test images and one file.
    """
    found = _Found(share)
    try:
        for file in _in_archive(source) if source.is_file() else _in_folder(source):
            found.add(file)
    except OSError as error:
        where = error.filename or source
        raise TaskError(f"{where} cannot be read ({error.strerror or error}).") from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise TaskError(f"{source} cannot be read as an archive ({error}).") from None
    return found.examples(source)


class _Found:
    """Collects the images of a share from files in any order."""

    def __init__(self, share: tuple[float, float] | None) -> None:
        self._share = share
        self._own = np.empty(0, np.int64)  # numbers of the wanted images in the whole set
        self._missing = set(MD5)
        self._x: Array | None = None
        self._y = np.empty(0, np.int32)
        self._test: tuple[Array, Array] | None = None

    def add(self, file: BatchFile) -> None:
        binary = file.name.endswith(".bin")
        images, labels = read_binary_batch(file) if binary else read_python_batch(file)
        name = file.name.removesuffix(".bin")
        self._missing.discard(name)
        if name == TEST:
            self._test = np.ascontiguousarray(images), labels
            return
        count, number = len(labels), TRAINING.index(name)
        if self._x is None:
            whole = len(TRAINING) * count
            self._own = own_numbers(whole, self._share) if self._share else np.arange(whole)
            self._x = np.empty((len(self._own), *EXAMPLE.shape), np.uint8)
            self._y = np.empty(len(self._own), np.int32)
        places = np.flatnonzero(self._own // count == number)
        chosen = self._own[places] % count
        self._x[places], self._y[places] = images[chosen], labels[chosen]

    def examples(self, source: Path) -> Examples:
        if self._missing or self._x is None or self._test is None:
            raise TaskError(f"{source} lacks {', '.join(sorted(self._missing))} of CIFAR-10.")
        return Examples(self._x, self._y, *self._test)


def _in_folder(folder: Path) -> Iterator[BatchFile]:
    folders = [folder, *(folder / name for name in UNPACKED)]
    for place, suffix in ((place, suffix) for place in folders for suffix in ("", ".bin")):
        if (place / f"{TRAINING[0]}{suffix}").exists():
            for name in MD5:
                yield in_folder(place / f"{name}{suffix}")
            return
    raise TaskError(
        f"{folder} holds neither data_batch_1 nor data_batch_1.bin, as the folder unpacked "
        "from CIFAR-10's python or binary version does."
    )


def in_folder(path: Path) -> BatchFile:
    return BatchFile(path.name, str(path), path.stat().st_size, path.read_bytes)


def _in_archive(archive: Path) -> Iterator[BatchFile]:
    """Yields files in the order of the archive, which is unpacked once, in memory."""
    with tarfile.open(archive, "r|*") as opened:
        for member in opened:
            name = member.name.rsplit("/", 1)[-1]
            content = opened.extractfile(member) if member.isfile() else None
            if content is not None and name.removesuffix(".bin") in MD5:
                yield BatchFile(name, f"{member.name} in {archive}", member.size, content.read)


def read_python_batch(file: BatchFile) -> tuple[Array, Array]:
    """Reads a file of the python version; the bytes whose digest was checked are unpickled."""
    content = _content(file, PICKLE_LIMIT)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5.get(file.name):
        raise TaskError(
            f"{file.where} is not the publisher's file, so it is not unpickled; unpack it anew."
        )
    batch = pickle.loads(content, encoding="bytes")
    return _images(batch[b"data"]), np.array(batch[b"labels"], np.int32)


def read_binary_batch(file: BatchFile, count: int = PER_FILE) -> tuple[Array, Array]:
    """Reads a file of the binary version, with `count` records."""
    content = _content(file, count * RECORD)
    if len(content) != count * RECORD:
        raise TaskError(f"{file.where} has {len(content)} bytes, and not {count * RECORD}.")
    records = np.frombuffer(content, np.uint8).reshape(count, RECORD)
    labels = records[:, 0].astype(np.int32)
    if labels.max() >= CLASSES:
        raise TaskError(f"{file.where} is not CIFAR-10's: it has a label {labels.max()}.")
    return _images(records[:, 1:]), labels


def _content(file: BatchFile, limit: int) -> bytes:
    if file.size > limit:
        raise TaskError(f"{file.where} has {file.size} bytes, more than any file of CIFAR-10's.")
    return file.read()


def _images(rows: Array) -> Array:
    """Returns rows [n, 3·32·32], channel by channel, as a view [n, 32, 32, 3]."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
