"""The file of a store: sqlite3 with a write-ahead log, one transaction for each change.

A change that has returned survives a kill of the process. `synchronous=NORMAL` does not wait for
the disk at each of them: a power cut may cost the changes since the log was last written into the
file, a few hundred at most, and never damages it.

What is known of an example and its bytes are in two tables, so that opening reads little.

Every step of a statement gives Python's interpreter lock away, and a thread that trains takes it.
So what is done often is one step: `put_example` by a trigger, `contents` by joining all bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.durable import make_folder
from firmware_sim.errors import StoreError
from firmware_sim.store.size import PAGE, Size

FILE = "examples.sqlite"
SCHEMA = 1
COUNTERS = ("arrivals", "asked_trained", "asked_held_out", "expired", "not_kept", "repeated")
_FACTS = ("slot", "key", "part", "arrival", "seconds", "label", "loss")
_PUT_CONTENT = (
    "INSERT INTO contents VALUES ({}, {}) ON CONFLICT (slot) DO UPDATE SET data = excluded.data"
)
_TABLES = f"""
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE counters ({", ".join(f"{name} INTEGER NOT NULL" for name in COUNTERS)});
INSERT INTO counters VALUES ({", ".join("0" for _ in COUNTERS)});
CREATE TABLE facts (
    slot INTEGER PRIMARY KEY, key INTEGER NOT NULL UNIQUE, part INTEGER NOT NULL,
    arrival INTEGER NOT NULL, seconds REAL NOT NULL, label INTEGER NOT NULL, loss REAL NOT NULL
);
CREATE TABLE contents (slot INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE learnt (moments BLOB);
INSERT INTO learnt VALUES (NULL);
CREATE VIEW examples AS SELECT * FROM facts NATURAL JOIN contents, counters, learnt;
CREATE TRIGGER put INSTEAD OF INSERT ON examples BEGIN
    REPLACE INTO facts VALUES ({", ".join(f"NEW.{name}" for name in _FACTS)});
    {_PUT_CONTENT.format("NEW.slot", "NEW.data")};
    UPDATE counters SET {", ".join(f"{name} = NEW.{name}" for name in COUNTERS)};
    UPDATE learnt SET moments = NEW.moments WHERE NEW.moments IS NOT NULL;
END;
"""
_SET_COUNTERS = f"UPDATE counters SET {', '.join(f'{name} = ?' for name in COUNTERS)}"
_PUT_EXAMPLE = f"INSERT INTO examples VALUES ({', '.join('?' * (len(_FACTS) + len(COUNTERS) + 2))})"
# Bytes stay what they are: text is not checked, and has a length of its own.
_JOINED = """SELECT CAST(group_concat(data, '') AS BLOB) FROM
    (SELECT data FROM contents WHERE slot IN ({}) ORDER BY slot)"""
Facts = tuple[int, int, int, int, float, int, float]  # a row of the table


class Database:
    """One connection; whoever uses it from several threads holds a lock."""

    def __init__(self, path: Path, size: Size | None = None) -> None:
        """Opens the file, or makes it if there is a `size`; without one it is only read."""
        self.path = path
        if size is None and not path.exists():
            raise StoreError(f"there are no examples at {path.parent}.")
        with self._translated():
            if size is not None:
                make_folder(path.parent)
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=10.0
            )
            self._set_up(size)

    def _set_up(self, size: Size | None) -> None:
        run = self._connection.execute
        run("PRAGMA cache_size = -512")  # KiB
        run(f"PRAGMA page_size = {PAGE}")
        run("PRAGMA synchronous = NORMAL")
        if size is not None:
            run("PRAGMA journal_mode = WAL")
            run(f"PRAGMA wal_autocheckpoint = {size.journal_pages}")
            run(f"PRAGMA journal_size_limit = {size.journal_pages * PAGE}")
            run(f"PRAGMA max_page_count = {size.pages}")
        version = run("PRAGMA user_version").fetchone()[0]
        if version == 0 and size is not None:
            self._connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version={SCHEMA};COMMIT;")
        elif version != SCHEMA:
            raise StoreError(
                f"{self.path} was written by another version; --erase-store empties it."
            )

    @contextmanager
    def change(self) -> Iterator[None]:
        """All statements within it are done when it ends, or none."""
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def about(self) -> dict[str, str]:
        return dict(self._rows("SELECT name, value FROM about"))

    def say_about(self, values: dict[str, str]) -> None:
        self._connection.executemany("REPLACE INTO about VALUES (?, ?)", values.items())

    def counters(self) -> dict[str, int]:
        (row,) = self._rows("SELECT * FROM counters")
        return dict(zip(COUNTERS, row, strict=True))

    def set_counters(self, values: dict[str, int]) -> None:
        self._connection.execute(_SET_COUNTERS, [values[name] for name in COUNTERS])

    def all_facts(self) -> Iterator[Facts]:
        with self._translated():
            yield from self._connection.execute("SELECT * FROM facts")

    def facts_of(self, key: int) -> Facts | None:
        return next(iter(self._rows("SELECT * FROM facts WHERE key = ?", key)), None)

    def put_facts(self, facts: Facts) -> None:
        self._connection.execute("REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?, ?)", facts)

    def set_losses(self, losses: Sequence[tuple[float, int]]) -> None:
        """`losses` are pairs of a loss and the slot that it is of."""
        self._connection.executemany("UPDATE facts SET loss = ? WHERE slot = ?", losses)

    def free(self, slots: Sequence[int]) -> None:
        """Forgets the examples in these slots; their bytes are written over by the next ones."""
        self._connection.executemany("DELETE FROM facts WHERE slot = ?", [(s,) for s in slots])

    def put_content(self, slot: int, data: bytes) -> None:
        """A row that is there is written over in place."""
        self._connection.execute(_PUT_CONTENT.format("?", "?"), (slot, data))

    def put_example(
        self, facts: Facts, data: bytes, counters: dict[str, int], moments: bytes | None
    ) -> None:
        """Puts facts, content, counters and moments, if there are any, in one change of its own."""
        with self._translated():
            values = (*facts, data, *(counters[name] for name in COUNTERS), moments)
            self._connection.execute(_PUT_EXAMPLE, values)

    def moments(self) -> bytes | None:
        """Returns what `put_example` or `set_moments` has put last."""
        ((moments,),) = self._rows("SELECT moments FROM learnt")
        return None if moments is None else bytes(moments)

    def set_moments(self, moments: bytes) -> None:
        self._connection.execute("UPDATE learnt SET moments = ?", (moments,))

    def contents(self, slots: Sequence[int]) -> list[bytes]:
        """Returns the bytes in these slots, which are all of one length."""
        if not slots:
            return []
        places = {slot: place for place, slot in enumerate(sorted(set(slots)))}
        statement = _JOINED.format(", ".join("?" * len(places)))
        with self._translated():
            (joined,) = self._connection.execute(statement, list(places)).fetchone()
        size = len(joined) // len(places)
        return [joined[places[slot] * size :][:size] for slot in slots]

    def shrink(self, slots: int) -> None:
        """Forgets all slots from that number on, and returns their pages to the system."""
        with self.change():
            for table in ("facts", "contents"):
                self._connection.execute(f"DELETE FROM {table} WHERE slot >= ?", (slots,))
        with self._translated():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._translated():
            self._connection.close()

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        with self._translated():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.path} cannot be used ({error}); --erase-store starts with an empty one."
            ) from None


def erase(folder: Path) -> int:
    """Removes the store of a state folder; returns the bytes that it took."""
    files = [folder / f"{FILE}{ending}" for ending in ("", "-wal", "-shm")]
    found = [file for file in files if file.exists()]
    if not found:
        raise StoreError(f"there are no examples at {folder}.")
    taken = sum(file.stat().st_size for file in found)
    for file in found:
        file.unlink()
    return taken
