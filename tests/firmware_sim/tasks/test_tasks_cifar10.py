"""CIFAR-10 is read from either of the publisher's versions, and no foreign pickle is loaded."""

import hashlib
import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.make_task import TaskOptions, make_task
from firmware_sim.errors import TaskError
from firmware_sim.tasks import cifar10
from firmware_sim.tasks.labelled import own_share
from tests.harness.manifests import a_manifest, inputs

RECORD = 3073
SIZE = 10_000 * RECORD
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def image(seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def row(pixels: npt.NDArray[np.uint8]) -> bytes:
    """As the publisher stores an image: its 1,024 red values, row by row, then green, then blue."""
    return b"".join(bytes(pixels[:, :, channel].ravel().tolist()) for channel in range(3))


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A folder of the right sizes: image 3 of file i is image(i) with label i, all else is 0."""
    for i, name in enumerate(NAMES):
        with (tmp_path / f"{name}.bin").open("wb") as file:
            file.seek(3 * RECORD)
            file.write(bytes([i]) + row(image(i)))
            file.truncate(SIZE)
    return tmp_path


@pytest.fixture
def cifar10_bundle(digits_bundle: Bundle) -> Bundle:
    """Says of itself that it takes CIFAR-10's images; it is never run."""
    signatures = {"train": inputs(x=("uint8", 32, 32, 32, 3), y=("int32", 32))}
    return replace(digits_bundle, manifest=a_manifest(signatures=signatures))


def refusal(folder: Path) -> str:
    with pytest.raises(TaskError) as caught:
        cifar10.read_cifar10(folder)
    return str(caught.value)


# --- the binary version --------------------------------------------------------------------------


def test_a_binary_file_is_read_record_by_record(tmp_path: Path) -> None:
    file = tmp_path / "data_batch_1.bin"
    file.write_bytes(b"".join(bytes([i % 10]) + row(image(i)) for i in range(23)))
    images, labels = cifar10.read_binary_batch(cifar10.in_folder(file), 23)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, [image(i) for i in range(23)])
    assert (labels.dtype.name, labels.tolist()) == ("int32", [i % 10 for i in range(23)])


def test_six_files_make_the_task(binary: Path, cifar10_bundle: Bundle) -> None:
    examples = cifar10.read_cifar10(binary)
    assert (examples.x_train.shape, examples.x_test.shape) == (
        (50_000, 32, 32, 3),
        (10_000, 32, 32, 3),
    )
    for i in range(5):
        np.testing.assert_array_equal(examples.x_train[10_000 * i + 3], image(i))
    np.testing.assert_array_equal(examples.x_test[3], image(5))
    assert np.flatnonzero(examples.y_train).tolist() == [10_003, 20_003, 30_003, 40_003]
    assert examples.y_train[10_003::10_000].tolist() == [1, 2, 3, 4]
    assert (examples.y_test[3], examples.y_test.sum()) == (5, 5)
    task = make_task("cifar10", cifar10_bundle, TaskOptions(data=binary, share=(0.05, 0.2)))
    assert task.samples == 7_500


@pytest.mark.parametrize("size", [0, SIZE - 1])
def test_a_binary_file_of_another_size_is_refused(binary: Path, size: int) -> None:
    os.truncate(binary / "data_batch_2.bin", size)
    assert refusal(binary) == f"{binary / 'data_batch_2.bin'} has {size} bytes, and not 30730000."


def test_a_binary_file_that_is_too_large_is_not_read(binary: Path) -> None:
    os.truncate(binary / "data_batch_1.bin", 2**40)  # more than this machine could hold
    file = binary / "data_batch_1.bin"
    assert refusal(binary) == f"{file} has {2**40} bytes, more than any file of CIFAR-10's."


def test_foreign_labels_and_missing_files_are_refused(binary: Path, tmp_path: Path) -> None:
    with (binary / "data_batch_1.bin").open("r+b") as file:
        file.write(bytes([17]))
    assert refusal(binary) == (
        f"{binary / 'data_batch_1.bin'} is not CIFAR-10's: it has a label 17."
    )
    (binary / "data_batch_1.bin").unlink()
    sentence = (
        f"{binary} holds neither data_batch_1 nor data_batch_1.bin, as the folder unpacked from "
        "CIFAR-10's python or binary version does."
    )
    assert refusal(binary) == sentence
    os.truncate(binary / "data_batch_2.bin", SIZE)
    (binary / "data_batch_2.bin").rename(binary / "data_batch_1.bin")
    assert refusal(binary) == (
        f"{binary / 'data_batch_2.bin'} cannot be read (No such file or directory)."
    )


def test_the_task_needs_a_folder(cifar10_bundle: Bundle) -> None:
    with pytest.raises(
        TaskError, match=r"^the task cifar10 needs data: CIFAR-10's archive, or the folder"
    ):
        make_task("cifar10", cifar10_bundle, TaskOptions())


# --- the python version --------------------------------------------------------------------------


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_an_unverified_pickle_is_never_loaded(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "batches"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(pickle.dumps(Trap(made)))
    assert refusal(folder) == (
        f"{folder / 'data_batch_1'} is not the publisher's file, so it is not unpickled; "
        "unpack it anew."
    )
    assert not made.exists()
    pickle.loads((folder / "data_batch_1").read_bytes())
    assert made.exists(), "the trap works"


def batch(seed: int, count: int = 7) -> bytes:
    """A pickle such as the publisher's: old protocol, keys as bytes."""
    data = np.frombuffer(b"".join(row(image(seed + i)) for i in range(count)), np.uint8)
    content = {
        b"data": data.reshape(count, 3072),
        b"labels": [(seed + i) % 10 for i in range(count)],
    }
    return pickle.dumps(content, protocol=2)


def test_a_file_with_its_published_sum_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "data_batch_1", tmp_path / "data_batch_2"
    file.write_bytes(batch(100))
    other.write_bytes(batch(100))
    known = hashlib.md5(batch(100), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(cifar10.MD5, "data_batch_1", known)
    images, labels = cifar10.read_python_batch(cifar10.in_folder(file))
    assert (images.dtype.name, labels.dtype.name) == ("uint8", "int32")
    np.testing.assert_array_equal(images, [image(100 + i) for i in range(7)])
    assert labels.tolist() == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(TaskError, match="is not the publisher's file"):
        cifar10.read_python_batch(cifar10.in_folder(other))  # the sum of another name is no excuse
    file.write_bytes(batch(100) + b" ")
    with pytest.raises(TaskError, match="is not the publisher's file"):
        cifar10.read_python_batch(cifar10.in_folder(file))


def test_a_huge_pickle_is_not_even_read(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").touch()
    os.truncate(tmp_path / "data_batch_1", 2**40)
    assert refusal(tmp_path) == (
        f"{tmp_path / 'data_batch_1'} has {2**40} bytes, more than any file of CIFAR-10's."
    )


# --- the archive ---------------------------------------------------------------------------------


def archive(path: Path, files: dict[str, bytes]) -> Path:
    """A small archive in the publisher's format, with a file that is none of the batches."""
    with tarfile.open(path, "w:gz") as opened:
        for name, content in {"readme.html": b"hello", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Six files of seven images each, which count as the publisher's; the test set comes first."""
    files = {name: batch(10 * i) for i, name in enumerate(reversed(list(NAMES)))}
    for name, content in files.items():
        known = hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(cifar10.MD5, name, known)
    return files


def test_an_archive_is_read_without_being_unpacked(
    tmp_path: Path, published: dict[str, bytes]
) -> None:
    examples = cifar10.read_cifar10(archive(tmp_path / "cifar.tar.gz", published))
    assert (examples.x_train.shape, examples.x_train.dtype.name) == ((35, 32, 32, 3), "uint8")
    # The files are numbered 5 … 1 in the archive, and 1 … 5 in the training set.
    expected = [10 * i + j for i in (5, 4, 3, 2, 1) for j in range(7)]
    np.testing.assert_array_equal(examples.x_train, [image(seed) for seed in expected])
    assert examples.y_train.tolist() == [seed % 10 for seed in expected]
    np.testing.assert_array_equal(examples.x_test, [image(seed) for seed in range(7)])
    assert [file.name for file in tmp_path.iterdir()] == ["cifar.tar.gz"]
    unpacked = tmp_path / "data" / "cifar-10-batches-py"
    unpacked.mkdir(parents=True)
    for name, content in published.items():
        (unpacked / name).write_bytes(content)
    for folder in (unpacked, unpacked.parent):
        again = cifar10.read_cifar10(folder)
        np.testing.assert_array_equal(again.x_train, examples.x_train)
        np.testing.assert_array_equal(again.y_test, examples.y_test)


@pytest.mark.parametrize("share", [(0.0, 1.0), (0.0, 0.2), (0.35, 0.9)])
def test_a_share_is_what_dividing_the_whole_gives(
    tmp_path: Path, published: dict[str, bytes], share: tuple[float, float]
) -> None:
    file = archive(tmp_path / "cifar.tar.gz", published)
    own, expected = cifar10.read_cifar10(file, share), own_share(cifar10.read_cifar10(file), share)
    assert len(own.x_train) == round(35 * share[1]) - round(35 * share[0])
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(own, name), getattr(expected, name))
        assert getattr(own, name).flags.c_contiguous


def test_an_archive_never_leads_to_unpickling_something_else(
    tmp_path: Path, published: dict[str, bytes]
) -> None:
    made = tmp_path / "made"
    file = archive(tmp_path / "c.tar.gz", published | {"data_batch_3": pickle.dumps(Trap(made))})
    assert refusal(file) == (
        f"cifar-10-batches-py/data_batch_3 in {file} is not the publisher's file, so it is not "
        "unpickled; unpack it anew."
    )
    assert not made.exists()


def test_incomplete_and_cut_archives_are_refused(
    tmp_path: Path, published: dict[str, bytes]
) -> None:
    file = archive(tmp_path / "c.tar.gz", {n: c for n, c in published.items() if n[-1] not in "24"})
    assert refusal(file) == f"{file} lacks data_batch_2, data_batch_4 of CIFAR-10."
    whole = archive(tmp_path / "whole.tar.gz", published).read_bytes()
    for kept in (0, 5, 1000, len(whole) // 2):
        file.write_bytes(whole[:kept])
        assert refusal(file).startswith(f"{file} cannot be read as an archive (")
    file.write_bytes(b"something else entirely" * 100)
    assert refusal(file).startswith(f"{file} cannot be read as an archive (")
