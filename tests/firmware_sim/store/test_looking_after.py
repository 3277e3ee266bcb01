"""What a person may do with a store that a device has left behind."""

from pathlib import Path

import pytest

from firmware_sim.errors import StoreError
from firmware_sim.store.database import FILE, Database
from firmware_sim.store.looking_after import erase_store, export_store, show_store
from firmware_sim.store.size import Size


def test_a_store_that_a_kill_left_without_a_description_is_told(tmp_path: Path) -> None:
    Database(tmp_path / FILE, Size(128, 100, 10_000)).close()
    with pytest.raises(StoreError, match=r"was never finished, and holds no examples"):
        show_store(tmp_path)
    with pytest.raises(StoreError, match=r"was never finished, and holds no examples"):
        export_store(tmp_path, tmp_path / "examples.npz")
    assert not (tmp_path / "examples.npz").exists()
    assert erase_store(tmp_path)
