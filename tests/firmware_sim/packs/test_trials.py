"""A pack from the broker is on trial, kept or rolled back, wherever the device is killed."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.errors import PackError
from firmware_sim.packs.format import LIMITS
from firmware_sim.packs.installed import Packs
from firmware_sim.packs.trial import MOST_STARTS, TRIAL
from tests.firmware_sim.packs.test_packs import STRANGER, contents, packed, packs_of

BUNDLE_ALONE = {n: d for n, d in contents(5).items() if n.startswith("bundle/")}


def offered(folder: Path, version: int, **changes: Any) -> Path:
    """A pack for every device of the fleet, without credentials."""
    return packed(folder, version=version, **({"device": "*", "files": BUNDLE_ALONE} | changes))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a device that runs version 7, which was carried to it."""
    with packs_of(tmp_path / "state") as packs:
        packs.install(packed(tmp_path, arguments=["--task", "digits"]))
    return tmp_path / "state"


def in_use(state: Path, *, on_trial: bool = False) -> int:
    packs = Packs(state, on_trial=on_trial)
    found = packs.current()
    packs.close()
    assert found is not None
    assert found.owner.device == "pi-1"
    assert found.credential("password").read_bytes() == contents()["credentials/password"]
    return found.index.version


def test_it_is_in_use_for_who_tries_it_and_for_all_once_it_is_kept(
    state: Path, tmp_path: Path
) -> None:
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 9, arguments=["--steps", "3"]), within=60)
        assert packs.trial is not None
        assert packs.trial.within == 60
    assert in_use(state) == 7
    assert in_use(state, on_trial=True) == 9
    (state / "model-of-another").mkdir()
    with packs_of(state) as packs:
        assert packs.start_trial() is not None
        packs.confirm()
        installed = packs.current()
        assert installed is not None
        assert installed.arguments == ("--task", "digits", "--steps", "3")
    assert in_use(state) == 9
    assert not (state / "model-of-another").exists()
    with packs_of(state) as packs:  # the next one adds to the one with credentials as well
        packs.install(offered(tmp_path, 11), within=60)
        packs.confirm()
    assert in_use(state) == 11
    assert sorted(p.name for p in (state / "packs").iterdir()) == ["11", "7", "lock", "trusted.key"]
    with packs_of(state) as packs:  # what the unit says at every start
        packs.install(packed(tmp_path, arguments=["--task", "digits"]))
    assert in_use(state) == 11
    with packs_of(state) as packs:  # one that is carried there replaces all
        packs.install(packed(tmp_path, version=12))
    assert sorted(p.name for p in (state / "packs").iterdir()) == ["12", "lock", "trusted.key"]


def test_one_that_was_rolled_back_does_not_come_again(state: Path, tmp_path: Path) -> None:
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 9), within=60)
        packs.roll_back("it hangs")
        assert (packs.failed.version, packs.failed.text) == (9, "it hangs")
        with pytest.raises(PackError, match=r"has version 9, and version 9 is installed"):
            packs.install(offered(tmp_path, 9), within=60)
    assert in_use(state) == in_use(state, on_trial=True) == 7
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 10), within=60)
    assert in_use(state, on_trial=True) == 10


def test_it_has_three_starts(state: Path, tmp_path: Path) -> None:
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 9), within=60)
        for _ in range(MOST_STARTS):
            assert packs.start_trial() is not None
            packs.forgive_start()  # the user has stopped it: that does not count
            assert packs.start_trial() is not None
        assert packs.start_trial() is None
        assert packs.failed.text == "it has ended 3 times without finishing a round"
    assert in_use(state) == 7


def test_a_damaged_note_of_a_trial_ends_it(state: Path, tmp_path: Path) -> None:
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 9), within=60)
        (state / "packs" / TRIAL).write_bytes(b"\xff")
        assert packs.start_trial() is None
    assert in_use(state) == 7
    (state / "packs" / TRIAL).write_bytes(b"{}")
    with packs_of(state) as packs:
        assert packs.start_trial() is None
    assert in_use(state) == 7, "one that was carried here is never rolled back"


def test_one_that_decays_gives_way_to_the_one_before(state: Path, tmp_path: Path) -> None:
    with packs_of(state) as packs:
        packs.install(offered(tmp_path, 9), within=60)
        packs.confirm()
    (state / "packs" / "9" / "bundle" / "model.tflite").write_bytes(b"decayed")
    assert in_use(state) == 7


def refused(state: Path, file: Path, within: int | None = 60) -> str:
    with packs_of(state) as packs, pytest.raises(PackError) as caught:
        packs.install(file, within=within)
    assert in_use(state) == in_use(state, on_trial=True) == 7
    return str(caught.value)


def test_what_is_never_taken(state: Path, tmp_path: Path) -> None:
    assert "signed with another key" in refused(state, offered(tmp_path, 9, key=STRANGER))
    assert "an older one is never taken" in refused(state, offered(tmp_path, 6))
    assert "an older one is never taken" in refused(state, offered(tmp_path, 7))
    assert "this device is not in it" in refused(state, offered(tmp_path, 9, fleet="field"))
    assert "holds credentials" in refused(state, packed(tmp_path, version=9))
    everything = {name: contents(5)[name] for name in LIMITS}
    assert "other files" in refused(state, offered(tmp_path, 9, files=everything))
    assert "brings no credentials" in refused(state, offered(tmp_path, 9), within=None)
    file = offered(tmp_path, 9)
    content = bytearray(file.read_bytes())
    content[content.index(BUNDLE_ALONE["bundle/model.tflite"])] ^= 1
    file.write_bytes(content)
    assert "was changed after it was signed" in refused(state, file)


class Killed(BaseException):
    """Nothing after this happens."""


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> bool:
    """Runs `what` up to the given change of the disk; returns False if it has ended before."""
    left = number

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*arguments, **options)

        return change

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "unlink", "mkdir", "rmdir", "open"):
            patched.setattr(os, name, counted(getattr(os, name)))
        patched.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            what()
        except Killed:
            return True
        return False


@pytest.mark.parametrize("stage", ["install", "start", "keep", "roll back"])
def test_killed_at_every_change_of_the_disk(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A device that starts again runs one of the two packs, whole, and can go on to the other."""
    file = offered(tmp_path, 9)
    before = tmp_path / "before"
    if stage != "install":
        with packs_of(state) as packs:
            packs.install(file, within=60)
    shutil.copytree(state, before)
    for number in range(500):
        shutil.rmtree(state)
        shutil.copytree(before, state)
        packs = Packs(state)
        killed = killed_at(number, monkeypatch, partial(do, stage, packs, file))
        packs.close()
        with packs_of(state) as packs:
            trial = packs.start_trial()
        assert in_use(state) in ((7, 9) if stage == "keep" else (7,))
        if trial is not None:
            assert in_use(state, on_trial=True) == 9
        with packs_of(state) as packs:  # and a newer one is taken
            packs.roll_back("enough")
            packs.install(again(tmp_path), within=60)
            packs.confirm()
        assert in_use(state) == 10
        if not killed:
            assert number > 1
            return
    pytest.fail("it never ends")


def do(stage: str, packs: Packs, file: Path) -> None:
    match stage:
        case "install":
            packs.install(file, within=60)
        case "start":
            packs.start_trial()
        case "keep":
            packs.confirm()
        case "roll back":
            packs.roll_back("it hangs")


def again(folder: Path) -> Path:
    (folder / "again").mkdir(exist_ok=True)
    return offered(folder / "again", 10)
