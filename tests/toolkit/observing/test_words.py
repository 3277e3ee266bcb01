"""Numbers and times in words."""

from __future__ import annotations

import pytest

from toolkit.observing.status import Activity, DeviceStatus, Doing
from toolkit.observing.words import ago, doing, duration, measure_text, memory, size, spark


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.2 s"),
        (3, "3 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (36_060, "10 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times() -> None:
    assert ago(0, 5000) == "–"
    assert ago(9000, 5000) == "now"  # another clock
    assert ago(1000, 63_000) == "1 min 2 s ago"
    gone = Doing(activity=Activity.OFFLINE, since_ms=1000)
    assert doing(gone, 11_000) == "offline, last seen 10 s ago"
    paused = Doing(activity=Activity.PAUSED, why="battery: 9 %")
    assert doing(paused, 0) == "paused (battery: 9 %)"


def test_sizes_and_measures() -> None:
    assert [size(n) for n in (12, 1536, 200 * 2**20, 3 * 2**40)] == [
        "12 B",
        "1.5 KiB",
        "200 MiB",
        "3072 GiB",
    ]
    assert measure_text("accuracy", 0.9137) == "91.4 %"
    assert measure_text("rmse", 0.123456) == "0.1235"
    used = {"memory_bytes": 90.0 * 2**20, "memory_cap_bytes": 128.0 * 2**20}
    assert memory(DeviceStatus(name="pi", metrics=used)) == "90.0 MiB of 128 MiB"


def test_spark_lines() -> None:
    assert spark([]) == ""
    assert spark([1.0, 1.0]) == "▁▁"
    assert spark([0.0, 3.5, 7.0]) == "▁▅█"
    assert len(spark([float(i) for i in range(100)])) == 12
