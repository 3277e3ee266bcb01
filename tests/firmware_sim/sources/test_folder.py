"""Pictures and WAV files that appear in a folder become examples, labelled by their sub-folders."""

from __future__ import annotations

import os
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from firmware_sim.errors import SourceError
from firmware_sim.sources.folder import SEEN_FILE, FolderSource
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import FolderSettings
from firmware_sim.sources.source import LateLabel, Malformed, Observation
from firmware_sim.tensor_spec import Array, TensorSpec

Event = Observation | LateLabel | Malformed
CLASS = TensorSpec((), np.dtype(np.int32))


def spec(shape: tuple[int, ...], kind: str = "float32") -> TensorSpec:
    return TensorSpec(shape, np.dtype(kind))


def take(source: FolderSource, count: int) -> list[Event]:
    """The next events, from a source that is closed then."""
    found: list[Event] = []
    deadline = time.monotonic() + 20
    events = source.events()
    for event in events:
        found += [event] if event is not None else []
        if len(found) == count:
            source.close()
        assert time.monotonic() < deadline
    return found


def shown(events: list[Event]) -> list[Any]:
    return [e.reason if isinstance(e, Malformed) else (e.x.tolist(), e.y) for e in events]  # type: ignore[union-attr]


def age(*files: Path) -> Iterator[None]:
    """Makes files look as if they were complete, in this order."""
    for number, file in enumerate(files):
        past = time.time() - 1000 + number
        os.utime(file, (past, past))
        yield


def save_picture(file: Path, pixels: Any) -> Path:
    file.parent.mkdir(exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file)
    return file


def save_sound(file: Path, samples: Array, *, width: int = 2, rate: int = 100) -> Path:
    file.parent.mkdir(exist_ok=True)
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    return file


def test_pictures_grey_and_coloured(tmp_path: Path) -> None:
    grey = save_picture(tmp_path / "run" / "a.png", [[0, 255], [51, 102]])
    red = save_picture(tmp_path / "idle" / "b.png", np.full((8, 6, 3), (255, 0, 0)))
    other = save_picture(tmp_path / "c.bmp", np.full((1, 1), 7))
    bad = tmp_path / "run" / "d.jpg"
    bad.write_bytes(b"no picture")
    note = tmp_path / "run" / "e.txt"
    note.write_text("?")
    list(age(grey, red, other, bad, note))

    wanted = Request(x=spec((2, 2, 1)), y=CLASS, outputs=2)
    found = take(FolderSource(tmp_path, FolderSettings(), wanted), 5)
    assert shown(found[:1]) == [([[[0], [1]], [[np.float32(0.2)], [np.float32(0.4)]]], 1)]
    assert [e.y for e in found[1:3]] == [0, None]  # type: ignore[union-attr]
    assert shown(found[3:]) == [
        "run/d.jpg: a picture cannot be read (UnidentifiedImageError).",
        "run/e.txt is neither a picture nor a WAV file.",
    ]

    coloured = Request(x=spec((2, 3, 3), "uint8"))
    pixels = take(FolderSource(tmp_path, FolderSettings(), coloured), 5)[1]
    assert isinstance(pixels, Observation)
    assert pixels.x.dtype == np.uint8
    assert pixels.x.tolist() == [[[255, 0, 0]] * 3] * 2
    assert pixels.y is None


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    whole = save_picture(tmp_path / "whole.bmp", [[9, 9]]).read_bytes()
    (tmp_path / "whole.bmp").unlink()
    file = tmp_path / "new.bmp"
    source = FolderSource(tmp_path, FolderSettings(), Request(x=spec((1, 2), "uint8")))
    events = source.events()
    for part in range(3):
        with file.open("ab") as writer:
            writer.write(whole[part * 400 : (part + 1) * 400])
        assert next(events) is None
    found = next(event for event in events if event is not None)
    assert shown([found]) == [([[9, 9]], None)]
    source.close()


def test_no_file_is_read_twice_until_it_changes(tmp_path: Path) -> None:
    images, memory = tmp_path / "images", tmp_path / "state" / "source"
    file = save_picture(images / "a.png", [[1]])
    list(age(file))
    wanted = Request(x=spec((1, 1), "uint8"), memory=memory)
    assert shown(take(FolderSource(images, FolderSettings(), wanted), 1)) == [([[1]], None)]
    save_picture(images / "b.png", [[2]])
    list(age(file, images / "b.png"))
    os.utime(file, ns=(0, 10**9))  # changed
    found = shown(take(FolderSource(images, FolderSettings(), wanted), 2))
    assert found == [([[1]], None), ([[2]], None)]
    again = FolderSource(images, FolderSettings(), wanted)
    assert next(again.events()) is None


def test_what_a_kill_makes_it_read_again_has_the_same_keys(tmp_path: Path) -> None:
    sounds, memory = tmp_path / "sounds", tmp_path / "state"
    sounds.mkdir()
    file = save_sound(sounds / "a.wav", np.arange(12, dtype="<i2"))
    list(age(file))
    wanted = Request(x=spec((3,)), memory=memory)
    killed = FolderSource(sounds, FolderSettings(), wanted).events()
    before = [event.key for event in (next(killed), next(killed)) if isinstance(event, Observation)]
    found = take(FolderSource(sounds, FolderSettings(), wanted), 4)
    keys = [event.key for event in found if isinstance(event, Observation)]
    assert (len(before), keys[:2]) == (2, before)
    assert (len(keys), len(set(keys)), "" in keys) == (4, 4, False)


def test_a_torn_note_of_a_file_costs_no_later_one(tmp_path: Path) -> None:
    images, memory = tmp_path / "images", tmp_path / "state"
    wanted = Request(x=spec((1, 1), "uint8"), memory=memory)
    list(age(save_picture(images / "a.png", [[1]])))
    take(FolderSource(images, FolderSettings(), wanted), 1)
    with (memory / SEEN_FILE).open("ab") as seen:
        seen.write(b"torn")
    list(age(images / "a.png", save_picture(images / "b.png", [[2]])))
    os.utime(images / "a.png", ns=(0, 10**9))
    take(FolderSource(images, FolderSettings(), wanted), 2)
    assert (memory / SEEN_FILE).stat().st_size == 3 * 8
    assert next(FolderSource(images, FolderSettings(), wanted).events()) is None


def test_classes_are_numbered_by_name_and_then_as_they_come(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    wanted = Request(x=spec((1, 1), "uint8"), y=CLASS, outputs=3, memory=tmp_path / "state")
    for name in ("run", "idle"):
        save_picture(images / name / "a.png", [[1]])
    list(age(images / "run" / "a.png", images / "idle" / "a.png"))
    assert [y for _, y in shown(take(FolderSource(images, FolderSettings(), wanted), 2))] == [1, 0]
    for name in ("broken", "zebra"):
        list(age(save_picture(images / name / "a.png", [[1]])))
    os.utime(images / "zebra" / "a.png")
    broken, zebra = shown(take(FolderSource(images, FolderSettings(), wanted), 2))
    assert broken == ([[1]], 2)
    assert zebra == "zebra/a.png: the label 'zebra' is one more class than the bundle tells apart."


def test_windows_of_sounds(tmp_path: Path) -> None:
    samples = np.array([0, 16384, -32768, 8192, 1, 2, 3], "<i2")
    first = save_sound(tmp_path / "hum" / "a.wav", samples)
    short = save_sound(tmp_path / "hum" / "b.wav", samples[:2])
    stereo = save_sound(tmp_path / "hum" / "c.wav", samples[:6].reshape(3, 2))
    slow = save_sound(tmp_path / "hum" / "d.wav", samples, rate=50)
    bad = tmp_path / "hum" / "e.wav"
    bad.write_bytes(b"RIFF\0\0\0\0WAVEjunk")
    list(age(first, short, stereo, slow, bad))
    wanted = Request(x=spec((3,)), y=CLASS, outputs=1)
    assert shown(take(FolderSource(tmp_path, FolderSettings(rate=100), wanted), 6)) == [
        ([0, 0.5, -1], 0),
        ([0.25, np.float32(1 / 2**15), np.float32(2 / 2**15)], 0),
        "hum/b.wav: a WAV file has fewer than the 3 samples.",
        "hum/c.wav: a WAV file has 2 channels instead of 1.",
        "hum/d.wav: a WAV file has 50 samples a second instead of 100.",
        "hum/e.wav: a file is no WAV file with plain samples.",
    ]


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, np.array([128, 192, 0], np.uint8)),
        (3, np.frombuffer(b"\0\0\0\0\0\x40\0\0\x80", np.uint8)),
        (4, np.array([0, 2**30, -(2**31)], "<i4")),
    ],
)
def test_every_width_of_a_sample(tmp_path: Path, width: int, data: Array) -> None:
    list(age(save_sound(tmp_path / "a.wav", data, width=width)))
    wanted = Request(x=spec((3, 1)))
    assert shown(take(FolderSource(tmp_path, FolderSettings(), wanted), 1)) == [
        ([[0], [0.5], [-1]], None)
    ]


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        FolderSource(tmp_path / "none", FolderSettings(), Request(x=spec((2, 2))))
