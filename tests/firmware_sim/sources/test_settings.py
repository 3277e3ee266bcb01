"""The settings of a source: what is refused, and that the page names every key."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from firmware_sim.errors import SourceError
from firmware_sim.sources.settings import (
    CsvSettings,
    FolderSettings,
    MqttSettings,
    WindowSettings,
    read_settings,
)

PAGE = Path(__file__).parents[3] / "docs" / "sources.md"
KINDS = {
    "What all have": WindowSettings,
    "`csv:PATH`, `csv:-`: lines": CsvSettings,
    "`mqtt:TOPIC`: messages": MqttSettings,
    "`folder:DIR`: pictures and WAV files": FolderSettings,
}


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "sensor.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_what_a_file_says(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'columns = ["ax", "ay"]\nwindow = 128\nhop = 64\nmissing = 0\nfollow = false\n'
        'classes = ["idle", "run"]\nlabel_of = "majority"',
    )
    assert read_settings(CsvSettings, file) == CsvSettings(
        columns=("ax", "ay"),
        window=128,
        hop=64,
        missing=0,
        follow=False,
        classes=("idle", "run"),
        label_of="majority",
    )
    assert read_settings(CsvSettings, None) == CsvSettings()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("colums = ['a']", r"key 'colums' is unknown \(did you mean 'columns'\?\)\."),
        ("zzz = 1", r"key 'zzz' is unknown; the keys are classes, window"),
        ("window = 0", r"key 'window' must be a whole number from 1 to 1000000, but it is 0\."),
        ("window = true", r"but it is True\."),
        ("columns = 'ax'", r"key 'columns' must be a list of different texts, but it is 'ax'\."),
        ("columns = ['a', 'a']", r"must be a list of different texts"),
        ("missing = 'drop'", r"must be 'skip', 'hold' or a number, but it is 'drop'\."),
        ("missing = nan", r"but it is nan\."),
        ("label_of = 'first'", r"must be one of 'last', 'majority', 'mean', 'each', but"),
        ("separator = ', '", r"must be one character"),
        ("follow = 1", r"must be true or false, but it is 1\."),
        ("window = ", r"is not valid TOML \("),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as caught:
        read_settings(CsvSettings, written(tmp_path, text))
    assert "sensor.toml" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot be read \(No such file"):
        read_settings(CsvSettings, tmp_path / "none.toml")
    with pytest.raises(SourceError, match="larger than any settings"):
        read_settings(CsvSettings, written(tmp_path, "#" * 2**21))


@pytest.mark.parametrize("heading", KINDS)
def test_the_page_has_every_key_with_what_it_must_be(heading: str) -> None:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, flags=re.MULTILINE)
    common = {key.name for key in fields(WindowSettings)}
    keys = [
        key
        for key in fields(KINDS[heading])
        if key.name not in common or KINDS[heading] is WindowSettings
    ]
    assert dict(found) == {key.name: key.metadata["expected"] for key in keys}
