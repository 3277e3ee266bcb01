"""`--check` tells what is whole and touches nothing; `--salvage` keeps that, and tells the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker.aggregator.service
from broker.aggregator.__main__ import main
from broker.aggregator.storage.journal import BEGIN
from broker.aggregator.storage.salvage import salvage_state
from broker.aggregator.storage.store import PREVIOUS, SNAPSHOT, journals
from broker.errors import StoreError
from tests.harness.aggregators import Life, Plan, frozen
from tests.harness.disk_recorder import Recorder
from tests.harness.power_cuts import Disk, Known, lay_out, opened_files

SYNC = Plan("sync", (3, 3, 1, 1))  # two rounds are merged, two updates of the third are in
ASYNC = Plan("async", (2, 2, 2))
Listing = Callable[[Path], dict[str, bytes]]


@pytest.fixture(params=[SYNC, ASYNC], ids=["sync", "async"])
def plan(request: pytest.FixtureRequest) -> Plan:
    found: Plan = request.param
    return found


@pytest.fixture
def folder(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Snapshot, journal, and those before."""
    monkeypatch.setattr(broker.aggregator.service, "JOURNAL_LIMIT", 800)
    with Life(plan, tmp_path / "state") as life:
        life.send_all()
        assert frozen(life.aggregator.state) == plan.history()[-1]
    return tmp_path / "state"


class Command:
    """`python -m broker.aggregator` in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], listing: Listing) -> None:
        self._folder, self._capsys, self._listing = folder, capsys, listing

    def __call__(self, option: str, code: int = 0) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main([option, "--state", str(self._folder)])
        said = self._capsys.readouterr()
        assert ended.value.code == code, said
        return (said.out or said.err).splitlines()

    def check(self, code: int) -> list[str]:
        before = self._listing(self._folder)
        said = self("--check", code)
        assert self._listing(self._folder) == before, "nothing is touched"
        return said


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str], listing: Listing) -> Command:
    return Command(folder, capsys, listing)


def newest(folder: Path) -> Path:
    found = journals(folder)
    return found[max(found)]


def flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 8
    path.write_bytes(data)


def refusal(plan: Plan, folder: Path) -> str:
    with pytest.raises(StoreError) as caught:
        started(plan, folder)
    return str(caught.value)


def started(plan: Plan, folder: Path) -> tuple[str, int, int]:
    """Run and round of an aggregator that starts, and number of updates in its journal."""
    with Life(plan, folder) as life:
        return life.aggregator.state.run, life.aggregator.state.round, life.replayed


# --- damage to the journal -----------------------------------------------------------------------


def test_a_whole_state_is_described(plan: Plan, folder: Path, command: Command) -> None:
    (folder / "lock").unlink()
    said = command.check(0)
    round, before = (2, 1) if plan is SYNC else (4, 0)
    journal = newest(folder)
    old = folder / f"journal-{int(journal.name[-1]) - 1}"
    counted = f"{SYNC.total % 3 or 2} whole updates in {journal.stat().st_size - BEGIN} bytes"
    assert said == [
        f"{folder / SNAPSHOT}: whole; run run-1, round {round}, 3 devices",
        f"{folder / PREVIOUS}: whole; run run-1, round {before}, {3 if before else 0} devices",
        f"{old}: whole; {3 if plan is SYNC else 4} whole updates in "
        f"{old.stat().st_size - BEGIN} bytes",
        f"{journal}: whole; {counted}",
        f"{folder}: an aggregator can start with it",
    ]
    assert command("--salvage") == [
        f"{folder}: nothing to salvage; an aggregator can start with it"
    ]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_flipped_byte_in_the_journal(
    plan: Plan, folder: Path, command: Command, listing: Listing, kept: int
) -> None:
    journal = newest(folder)
    size = (journal.stat().st_size - BEGIN) // 2
    place = BEGIN + kept * size
    flip(journal, place + size // 2)
    before = listing(folder)
    said = (
        f"{journal} is damaged at byte {place}; "
        f"`python -m broker.aggregator --check --state {folder}` says what is whole."
    )
    assert refusal(plan, folder) == said
    assert listing(folder) == before, "nothing is touched"
    checked = command.check(1)
    counted = f"{kept} whole updates in {kept * size} bytes"
    assert f"{said} Before that: {counted}." in checked
    last = plan.update(plan.total - 1)
    lost = f"the update of {last.device} that started from round {last.round}"
    assert (f"acknowledged, and not whole any more: {lost}" in checked) == (kept == 0)
    assert checked[-1] == (f"{folder}: no aggregator starts with it; --salvage keeps what is whole")

    restored = command("--salvage")
    run, round, replayed = started(plan, folder)
    assert run != "run-1", "devices that are ahead follow a new run, and no older round"
    assert replayed == kept
    assert round == (2 if plan is SYNC else 4 + kept)
    assert restored == [
        f"restored: run {run}, round {2 if plan is SYNC else 4}, 3 devices; "
        f"and {kept} updates that were accepted after it",
        "lost: what stood in the damaged bytes",
        *([f"lost: {lost}"] if kept == 0 else []),
        "new run: it was run-1; devices follow it",
        f"kept aside: {folder / 'damaged-1'} has the files as they were",
    ]
    aside = listing(folder / "damaged-1")
    assert aside == {n: data for n, data in before.items() if n not in ("lock", "epoch")}
    assert command.check(0)[-1] == f"{folder}: an aggregator can start with it"


def test_a_torn_tail_is_no_damage(plan: Plan, folder: Path, command: Command) -> None:
    with newest(folder).open("ab") as file:
        file.write(b"\xf5upd\1\0\0")
    assert any(line.endswith("; 7 bytes were never acknowledged") for line in command.check(0))
    assert started(plan, folder)[2] == 2


# --- damage to the snapshot ----------------------------------------------------------------------


@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
def test_the_state_before_leads_to_the_newest_one(
    plan: Plan, folder: Path, command: Command, missing: bool
) -> None:
    path = folder / SNAPSHOT
    if missing:
        path.unlink()
    else:
        flip(path, -10)
    said = refusal(plan, folder)
    assert said.startswith(
        f"{newest(folder)} holds updates that came after {path}: a newer snapshot is missing; "
        if missing
        else f"{path} cannot be read: it is damaged"
    )
    assert said in command.check(1)
    restored = command("--salvage")
    assert restored[1:] == [
        "lost: nothing that was acknowledged",
        f"kept aside: {folder / 'damaged-1'} has the files as they were",
    ]
    with Life(plan, folder) as life:
        assert frozen(life.aggregator.state) == plan.history()[-1], "bit for bit, in the same run"
        life.send_all()
        assert frozen(life.aggregator.state) == plan.history()[-1], "and nothing counts twice"


def test_a_round_that_may_end_otherwise_begins_a_new_run(tmp_path: Path) -> None:
    """Its updates are all there, but nothing says any more that it was closed with these."""
    plan, folder = Plan("sync", (3, 3)), tmp_path / "state"
    with Life(plan, folder) as life:
        life.send_all()
    flip(folder / SNAPSHOT, -10)
    said = salvage_state(folder)
    assert said[1:3] == [
        "lost: nothing that was acknowledged",
        "new run: it was run-1; devices follow it",
    ]
    with Life(plan, folder) as life:
        assert (life.aggregator.state.round, life.replayed) == (1, 3)
        life.aggregator.poll()
        theta = life.aggregator.state.shared["kernel"].tobytes()
    assert theta == dict(plan.history()[-1][-1][0])["kernel"]


def test_what_followed_a_damaged_journal_is_lost(
    plan: Plan, folder: Path, command: Command
) -> None:
    """Snapshot and the journal before it, both damaged: only what is before both damages stays."""
    flip(folder / SNAPSHOT, -10)
    flip(sorted(journals(folder).items())[0][1], BEGIN + 20)
    said = command("--salvage")
    assert said[0].endswith("; and 0 updates that were accepted after it")
    assert f"lost: 2 updates of {newest(folder / 'damaged-1').name}" in said
    assert started(plan, folder)[1:] == (1 if plan is SYNC else 0, 0)


def test_nothing_whole_is_one_sentence(plan: Plan, folder: Path, command: Command) -> None:
    for name in (SNAPSHOT, PREVIOUS):
        flip(folder / name, -10)
    [said] = command("--salvage", code=1)
    assert said == (
        f"error: {folder} holds no whole snapshot; restore a backup, or give another --state."
    )


def test_a_snapshot_that_was_put_back_is_noticed(
    plan: Plan, folder: Path, command: Command
) -> None:
    """An older snapshot in the folder of a newer state would count updates twice or never."""
    shutil.copyfile(folder / PREVIOUS, folder / SNAPSHOT)
    assert "a newer snapshot is missing" in refusal(plan, folder)
    assert command.check(1)
    assert "lost: nothing that was acknowledged" in command("--salvage")
    with Life(plan, folder) as life:
        assert frozen(life.aggregator.state) == plan.history()[-1]


# --- the commands --------------------------------------------------------------------------------


def test_a_folder_in_use_is_left_alone(plan: Plan, folder: Path, command: Command) -> None:
    with Life(plan, folder):
        for option in ("--check", "--salvage"):
            assert command(option, code=1) == [f"error: another aggregator is using {folder}."]


def test_an_empty_folder_is_whole_and_none_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listing: Listing
) -> None:
    command = Command(tmp_path, capsys, listing)
    assert command.check(0) == [f"{tmp_path}: empty; a new run would begin here"]
    missing = tmp_path / "none"
    command = Command(missing, capsys, listing)
    assert command("--check", 1) == [
        f"error: {missing} cannot be read (No such file or directory)."
    ]


def test_serving_needs_what_checking_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--state", "state"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "the following arguments are required: --slice, --fleet\n"
    )


@pytest.mark.parametrize("damaged", ["journal", "snapshot"])
def test_a_power_cut_while_salvaging_loses_nothing(
    plan: Plan, folder: Path, damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been salvaged, or can be salvaged again with the same result."""
    if damaged == "journal":
        journal = newest(folder)
        flip(journal, -10)
    else:
        flip(folder / SNAPSHOT, -10)
    expected = plan.history()[-1 if damaged == "snapshot" else -2]
    recorder = Recorder(folder.parent)
    with monkeypatch.context() as hooks:
        recorder.begin(hooks)
        salvage_state(folder)
        recorder.note("done")
    monkeypatch.setattr("os.fsync", lambda _: None)
    disk, again = Disk(), 0
    known: Known[bool] = Known(measures=lambda path: "/journal-" in path)
    place = tmp_path.parent / f"{tmp_path.name}-cut"
    for number, event in enumerate(recorder.events):
        disk.add(event)
        if number < recorder.begun:
            continue
        for files in disk.states():
            starts = known.result(files)
            if starts is None:
                lay_out(files, place)
                with opened_files(place) as opened:
                    starts, found = start_again(plan, place / folder.name)
                assert found[1:] == expected[1:], "but for the run, bit for bit"
                known.learn(files, opened, starts)
                shutil.rmtree(place)
                again += not starts
            assert starts or not disk.notes, "it was salvaged, and does not start"
    assert again > 10


def start_again(plan: Plan, folder: Path) -> tuple[bool, tuple[Any, ...]]:
    """Whether an aggregator starts without being salvaged again, and with which state."""
    starts = True
    try:
        life = Life(plan, folder)
    except StoreError:
        starts = False
        salvage_state(folder)
        life = Life(plan, folder)
    with life:
        return starts, frozen(life.aggregator.state)


def test_what_is_found_is_said_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names in a state folder are those that devices gave themselves."""
    folder = tmp_path / "\x1b[2J\u202e"
    folder.mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["--check", "--state", str(folder)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said == rf"{tmp_path}/\x1b[2J\u202e: empty; a new run would begin here" + "\n"
