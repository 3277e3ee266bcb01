"""CIFAR-10 from the publisher's files: the python version, or the binary one.

The python version is pickled, and unpickling runs whatever a file says. So a file is unpickled
only if it is, byte for byte, the publisher's.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np

from firmware_sim.runtime import Array, TensorSpec
from firmware_sim.tasks.labelled import Examples
from firmware_sim.tasks.task import TaskError

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


def read_cifar10(folder: Path) -> Examples:
    """50,000 images to train on and 10,000 to test with, as uint8 [n, 32, 32, 3]."""
    if (folder / "data_batch_1").exists():
        read, suffix = read_python_batch, ""
    elif (folder / "data_batch_1.bin").exists():
        read, suffix = read_binary_batch, ".bin"
    else:
        raise TaskError(
            f"{folder} holds neither data_batch_1 nor data_batch_1.bin, as the folder unpacked "
            "from CIFAR-10's python or binary version does."
        )
    training = [name for name in MD5 if name != TEST]
    x = np.empty((len(training) * PER_FILE, *EXAMPLE.shape), np.uint8)
    y = np.empty(len(x), np.int32)
    for i, name in enumerate(training):
        part = slice(i * PER_FILE, (i + 1) * PER_FILE)
        x[part], y[part] = read(folder / f"{name}{suffix}")
    return Examples(x, y, *read(folder / f"{TEST}{suffix}"))


def read_python_batch(file: Path) -> tuple[Array, Array]:
    """A file of the python version; the very bytes whose sum was checked are unpickled."""
    content = _content(file, PICKLE_LIMIT)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5.get(file.name):
        raise TaskError(
            f"{file} is not the publisher's file, so it is not unpickled; unpack it anew."
        )
    batch = pickle.loads(content, encoding="bytes")
    return _images(batch[b"data"]), np.array(batch[b"labels"], np.int32)


def read_binary_batch(file: Path, count: int = PER_FILE) -> tuple[Array, Array]:
    """A file of the binary version, with `count` records."""
    content = _content(file, count * RECORD)
    if len(content) != count * RECORD:
        raise TaskError(f"{file} has {len(content)} bytes, and not {count * RECORD}.")
    records = np.frombuffer(content, np.uint8).reshape(count, RECORD)
    labels = records[:, 0].astype(np.int32)
    if labels.max() >= CLASSES:
        raise TaskError(f"{file} is not CIFAR-10's: it has a label {labels.max()}.")
    return _images(records[:, 1:]), labels


def _content(file: Path, limit: int) -> bytes:
    try:
        size = file.stat().st_size
        if size > limit:
            raise TaskError(f"{file} has {size} bytes, more than any file of CIFAR-10's.")
        return file.read_bytes()
    except OSError as error:
        raise TaskError(f"{file} cannot be read ({error.strerror}).") from None


def _images(rows: Array) -> Array:
    """[n, 3·32·32], channel by channel, to [n, 32, 32, 3]."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
