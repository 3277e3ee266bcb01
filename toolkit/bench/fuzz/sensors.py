"""Targets that read what a sensor delivers, and the settings of sources."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path

import numpy as np

from firmware_sim.errors import SourceError
from firmware_sim.sources.decoding.csv_table import BadLine, Table
from firmware_sim.sources.decoding.message import BadMessage, Messages
from firmware_sim.sources.decoding.pictures import BadPicture, read_picture
from firmware_sim.sources.decoding.sound import BadSound, read_sound
from firmware_sim.sources.framing import Framing
from firmware_sim.sources.labels import NoLabel
from firmware_sim.sources.request import Request
from firmware_sim.sources.settings import CsvSettings, MqttSettings, read_settings
from firmware_sim.sources.source import Observation
from firmware_sim.tensor_spec import Array, TensorSpec
from toolkit.bench.fuzz.target import Parser, Target, check, check_sentence

_X = TensorSpec((2, 3), np.dtype(np.float32))
_REQUEST = Request(x=_X, y=TensorSpec((), np.dtype(np.int32)), outputs=4)
_PICTURE = TensorSpec((4, 4, 3), np.dtype(np.uint8))


def read_lines(data: bytes) -> None:
    """Lines of a file: what they make must be an example of the bundle."""
    framing = Framing(CsvSettings(), _REQUEST, None)
    table, windows = Table(CsvSettings(), framing.channels, framing.targets), framing.windows()
    for line in data.decode("utf-8", "replace").split("\n"):
        try:
            row = table.read(line)
            if row is not None:
                window = windows.add(row.sample, framing.label(row.labels))
                if window is not None:
                    _check_example(framing.observation(window))
        except (BadLine, NoLabel) as error:
            check_sentence(error)
        except SourceError as error:
            check_sentence(error)
            return


def read_message(data: bytes) -> None:
    """A message, read as JSON, as text and as an array, and as a label."""
    for settings in _FORMS:
        framing = Framing(settings, _REQUEST, None)
        messages = Messages(settings, window=2, channels=3)
        try:
            reading = messages.read(data)
            label, windows = framing.label(reading.labels), framing.windows()
            for sample in reading.samples:
                window = windows.add(sample, label)
                if window is not None:
                    _check_example(framing.observation(window, reading.key))
        except (BadMessage, NoLabel) as error:
            check_sentence(error)
        try:
            framing.target(messages.read_label(data)[1])
        except (BadMessage, NoLabel) as error:
            check_sentence(error)


_FORMS = (
    MqttSettings(fields=("a.x", "a.y", "values.0"), key="id"),
    MqttSettings(fields=("samples",), whole_windows=True, key="id"),
    MqttSettings(payload="text"),
    MqttSettings(payload="float32", whole_windows=True),
)


def _check_example(event: object) -> None:
    if isinstance(event, Observation):
        check((event.x.shape, event.x.dtype) == (_X.shape, _X.dtype), "an example has no shape.")
        check(bool(np.isfinite(event.x).all()), "an example is not finite.")
        check(event.y is None or 0 <= event.y < 4, "a label is no class.")


def read_wav(data: bytes) -> None:
    try:
        for block in read_sound(io.BytesIO(data), channels=1, rate=None):
            check(bool((np.abs(block) <= 1).all()), "a sample is louder than all.")
    except BadSound as error:
        check_sentence(error)


def read_image(data: bytes) -> None:
    try:
        pixels = read_picture(data, _PICTURE)
    except BadPicture as error:
        check_sentence(error)
        return
    check((pixels.shape, pixels.dtype) == (_PICTURE.shape, _PICTURE.dtype), "another picture.")


def _open_settings(folder: Path) -> Parser:
    file = folder / "sensor.toml"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        for kind in (CsvSettings, MqttSettings):
            try:
                read_settings(kind, file)
            except SourceError as error:
                check_sentence(error)

    return Parser(run)


def _wav() -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(100)
        sound.writeframes(np.arange(-50, 50, dtype="<i2").tobytes())
    return written.getvalue()


def _pictures() -> list[bytes]:
    from PIL import Image

    pixels: Array = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    found = []
    for kind in ("PNG", "JPEG", "BMP", "GIF"):
        written = io.BytesIO()
        Image.fromarray(pixels).save(written, kind)
        found.append(written.getvalue())
    return found


_JSON = (
    {"a": {"x": 1, "y": "2.5"}, "values": [3, None], "label": 1, "id": "17"},
    {"samples": [[1, 2, 3], [4, 5, 6]], "label": "run", "id": 3},
    [1, 2, 3],
)

TARGETS = (
    Target(
        "csv",
        "lines of a sensor",
        lambda: [b"a,b,c,label\n1,2,3,0\n4,5,6,1\n", b"1,2,3,idle\r\n4,,6,run\r\n7,8,9,run\r\n"],
        lambda _: Parser(read_lines),
    ),
    Target(
        "sensor_message",
        "messages of a sensor",
        lambda: [
            *(json.dumps(document).encode() for document in _JSON),
            b"1, 2; 3",
            np.arange(6, dtype="<f4").tobytes(),
        ],
        lambda _: Parser(read_message),
    ),
    Target("wav", "WAV files in a folder", lambda: [_wav()], lambda _: Parser(read_wav)),
    Target("picture", "pictures in a folder", _pictures, lambda _: Parser(read_image)),
    Target(
        "source_settings",
        "the settings of sources in TOML",
        lambda: [
            b'columns = ["a", "b"]\nwindow = 128\nhop = 64\nmissing = 0.5\nfollow = false\n',
            b'fields = ["a.x"]\npayload = "int16"\nlabel_topic = "labels"\nkey = "id"\n',
        ],
        _open_settings,
    ),
)
