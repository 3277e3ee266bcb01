"""A file is the old one or the new one, and says itself when it has decayed."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from broker.durable import claim, is_claimed, make_folder, read_sealed, write_file, write_sealed
from broker.errors import WireError
from broker.protocol.wire import Array, decode, encode

FIELDS = {"round": 7, "owner": {"device": "pi-1"}, "note": "θ"}
TENSORS: dict[str, Array] = {
    "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.asarray(3, np.int64),
    "none": np.zeros((0, 4), np.float32),
    "text": np.frombuffer(b"{}", np.uint8),
}

WRITER = """
import sys
from pathlib import Path
from broker.durable import write_file
path, size = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
for number in range(10**9):
    write_file(path, bytes([number % 256]) * size)
"""

SEALER = """
import sys
from pathlib import Path
import numpy as np
from broker.durable import read_sealed, write_sealed
path = Path(sys.argv[1])

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

tensors = {str(number): np.ones(2**21, np.float32) for number in range(8)}
begin = peak()
write_sealed(path, "note", {}, tensors)
written = peak()
found = read_sealed(path, "note")
print(written - begin, peak() - begin)
"""


def test_a_file_is_replaced_whole_and_no_draft_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"first", b"", b"the third one"):
        write_file(path, data)
        assert path.read_bytes() == data
    write_file(path, b"in ", memoryview(b"parts"), b"")
    assert path.read_bytes() == b"in parts"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_that_was_cut_off_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    (tmp_path / ".file.new").write_bytes(b"a very long draft that was cut o")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    (tmp_path / ".file.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_killed_at_any_moment_a_file_is_whole(tmp_path: Path) -> None:
    path, size, rng = tmp_path / "file", 300_000, random.Random(0)
    path.write_bytes(bytes(size))
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(path), str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            for _ in range(rng.randrange(1, 200)):
                data = path.read_bytes()
                assert len(data) == size
                assert len(set(data)) == 1, "half an old file and half a new one"
            child.kill()
        data = path.read_bytes()
        assert (len(data), len(set(data))) == (size, 1)


def test_folders_are_made_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("broker.durable.sync_path", synced.append)
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    assert folder.is_dir()
    assert set(synced) == {tmp_path, tmp_path / "a"}, "the folders that have new names"
    (folder / "file").write_bytes(b"x")
    make_folder(folder)
    assert (folder / "file").read_bytes() == b"x"
    assert len(synced) == 2


def test_asking_for_a_lock_leaves_no_trace(tmp_path: Path) -> None:
    assert not is_claimed(tmp_path)
    assert list(tmp_path.iterdir()) == []
    lock = claim(tmp_path)
    assert lock is not None
    with lock:
        assert is_claimed(tmp_path)
        assert claim(tmp_path) is None
    assert not is_claimed(tmp_path)


# --- sealed --------------------------------------------------------------------------------------


def test_what_is_sealed_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "sealed.safetensors"
    write_sealed(path, "note", FIELDS, TENSORS)
    found = read_sealed(path, "note")
    assert (found.kind, dict(found.fields)) == ("note", FIELDS)
    assert found.tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        again = found.tensors[name]
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        assert again.tobytes() == array.tobytes()
    assert load_file(path).keys() == TENSORS.keys(), "any safetensors library can look into it"


def test_arrays_of_any_layout_are_stored_dense_and_aligned(tmp_path: Path) -> None:
    path = tmp_path / "sealed.safetensors"
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    layouts = {
        "a byte": np.ones(1, np.uint8),
        "big-endian": kernel.astype(">f4"),
        "half": kernel[0].astype(np.float16),
        "strided": np.repeat(kernel, 2, axis=1)[:, ::2],
        "transposed": np.ascontiguousarray(kernel.T).T,
        "wide": np.full(3, -(2**60)),
    }
    write_sealed(path, "note", FIELDS, layouts)
    loaded, found = load_file(path), read_sealed(path, "note").tensors
    assert loaded.keys() == found.keys() == layouts.keys()
    for name, array in layouts.items():
        assert np.array_equal(loaded[name], array), name
        assert np.array_equal(found[name], array), name
        assert found[name].ctypes.data % array.itemsize == 0, name


def test_a_sealed_file_is_a_message_with_its_checksum(tmp_path: Path) -> None:
    """One writer makes both, so that they cannot differ."""
    path = tmp_path / "sealed.safetensors"
    write_sealed(path, "note", FIELDS, TENSORS)
    found = decode(path.read_bytes(), limit=2**20)
    assert found.fields.keys() == {*FIELDS, "crc32"}
    assert path.read_bytes() == encode("note", found.fields, TENSORS)


def test_tensors_may_be_stored_in_any_order(tmp_path: Path) -> None:
    """Earlier versions ordered tensors of one size by their names alone."""
    path = tmp_path / "sealed.safetensors"
    both = {"a": np.ones(2, np.int32), "b": np.zeros(2, np.float32)}
    write_sealed(path, "note", {}, both)
    good = path.read_bytes()
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    header["a"]["data_offsets"], header["b"]["data_offsets"] = [0, 8], [8, 16]
    text = json.dumps(header).encode()
    data = both["a"].tobytes() + both["b"].tobytes()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    found = read_sealed(path, "note").tensors
    assert {name: array.tolist() for name, array in found.items()} == {"a": [1, 1], "b": [0, 0]}


def test_what_cannot_be_said_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "sealed.safetensors"
    write_sealed(path, "note", FIELDS, TENSORS)
    good = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_sealed(path, "note", {"loss": float("nan")}, TENSORS)
    assert path.read_bytes() == good


def test_neither_writing_nor_reading_copies_the_tensors_again(tmp_path: Path) -> None:
    """64 MiB of tensors: written from where they are, and read into one block."""
    ran = subprocess.run(
        [sys.executable, "-c", SEALER, str(tmp_path / "sealed.safetensors")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    written, read = map(int, ran.stdout.split())
    assert written < 4 * 2**20
    assert 64 * 2**20 <= read < 68 * 2**20


def test_no_changed_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "sealed.safetensors"
    write_sealed(path, "note", FIELDS, TENSORS)
    good = path.read_bytes()
    for index in range(len(good)):
        damaged = bytearray(good)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        with pytest.raises(WireError):
            read_sealed(path, "note")
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(WireError):
            read_sealed(path, "note")


def test_what_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sealed.safetensors"
    write_sealed(path, "note", FIELDS, TENSORS)
    with pytest.raises(WireError, match=r"^it holds a 'note', not a 'letter'\.$"):
        read_sealed(path, "letter")
    path.write_bytes(encode("note", FIELDS, TENSORS))
    with pytest.raises(WireError, match=r"^it is damaged, for its checksum differs\.$"):
        read_sealed(path, "note")
