"""The history of a fleet in sqlite, so that an observer that starts again shows what was before.

    point    (run, device, measure, round) → value, at
    merge    (run, round) → began, closed, devices, late
    change   at, device, online, waiting: when devices came, went and paused

One connection; every method may be called from any thread.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from toolkit.errors import ObserverError
from toolkit.observing.curves import Curve
from toolkit.observing.status import DeviceStatus, RoundStatus

VERSION = 1
MOST_POINTS = 1_000_000  # about 60 MB; beyond it the oldest tenth is dropped
_SCHEMA = """
CREATE TABLE point (
    run TEXT, device TEXT, measure TEXT, round INTEGER, value REAL, at_ms INTEGER,
    PRIMARY KEY (run, device, measure, round)) WITHOUT ROWID;
CREATE INDEX point_at ON point (at_ms);
CREATE TABLE merge (
    run TEXT, round INTEGER, began_ms INTEGER, closed_ms INTEGER, devices INTEGER, late TEXT,
    PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE change (at_ms INTEGER, device TEXT, online INTEGER, waiting TEXT);
CREATE INDEX change_device ON change (device);
"""


class History:
    """The history in a file, or in memory if there is none."""

    def __init__(self, file: Path | None = None) -> None:
        where = ":memory:" if file is None else str(file)
        self._lock = threading.Lock()
        try:
            self._base = sqlite3.connect(where, check_same_thread=False)
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            tables = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version != VERSION and tables:
                raise ObserverError(f"{file} is not a history that this version has written.")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            if not tables:
                self._base.executescript(_SCHEMA)
                self._base.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error as error:
            raise ObserverError(f"the history {file} cannot be used ({error}).") from None
        (self._points,) = self._base.execute("SELECT count(*) FROM point").fetchone()

    def add_point(self, run: str, device: DeviceStatus, *, at_ms: int) -> None:
        """Keeps a device's measure of its round."""
        values = run, device.name, device.measure, device.trained_round, device.score, at_ms
        with self._lock:
            self._base.execute("INSERT OR REPLACE INTO point VALUES (?, ?, ?, ?, ?, ?)", values)
            self._points += 1
            if self._points > MOST_POINTS:
                self._drop_oldest()

    def add_rounds(self, run: str, rounds: Iterable[RoundStatus]) -> None:
        rows = [
            (run, r.number, r.began_ms, r.closed_ms, r.devices, json.dumps(r.late)) for r in rounds
        ]
        with self._lock:
            self._base.executemany("INSERT OR REPLACE INTO merge VALUES (?, ?, ?, ?, ?, ?)", rows)

    def add_change(self, device: DeviceStatus, *, at_ms: int) -> None:
        """Keeps that a device came, went, paused or went on."""
        values = at_ms, device.name, bool(device.online), device.waiting
        with self._lock:
            self._base.execute("INSERT INTO change VALUES (?, ?, ?, ?)", values)

    def curves(self, run: str) -> dict[tuple[str, str], Curve]:
        """Returns the curves of a run, by device and measure."""
        found: dict[tuple[str, str], Curve] = {}
        query = "SELECT device, measure, round, value FROM point WHERE run = ? ORDER BY round"
        with self._lock:
            for device, measure, number, value in self._base.execute(query, (run,)):
                found.setdefault((device, measure), Curve()).add(number, value)
        return found

    def rounds(self, run: str, most: int) -> tuple[RoundStatus, ...]:
        """Returns the newest merges of a run, the newest last."""
        query = "SELECT * FROM merge WHERE run = ? ORDER BY round DESC LIMIT ?"
        with self._lock:
            rows = self._base.execute(query, (run, most)).fetchall()
        return tuple(
            RoundStatus(
                number=number,
                began_ms=began,
                closed_ms=closed,
                devices=devices,
                late=tuple(json.loads(late)),
            )
            for _, number, began, closed, devices, late in reversed(rows)
        )

    def last_changes(self) -> Mapping[str, tuple[int, bool]]:
        """Returns for each device when it last came or went, and whether it came."""
        newest = "SELECT max(rowid) FROM change GROUP BY device"
        query = f"SELECT device, at_ms, online FROM change WHERE rowid IN ({newest})"
        with self._lock:
            rows = self._base.execute(query).fetchall()
        return {device: (at_ms, bool(online)) for device, at_ms, online in rows}

    def commit(self) -> None:
        with self._lock:
            self._base.commit()

    def close(self) -> None:
        with self._lock:
            self._base.commit()
            self._base.close()

    def _drop_oldest(self) -> None:
        oldest = "SELECT at_ms FROM point ORDER BY at_ms LIMIT 1 OFFSET ?"
        (until,) = self._base.execute(oldest, (MOST_POINTS // 10,)).fetchone()
        self._base.execute("DELETE FROM point WHERE at_ms <= ?", (until,))
        (self._points,) = self._base.execute("SELECT count(*) FROM point").fetchone()
