"""A power cut at any moment: whatever the disk then holds, every promise of the aggregator is kept.

The real aggregator works on a broker in memory while everything that it does to its disk is
recorded, and every message that it sends is noted at its place between the writes. Then the power
is cut after every step, and for each state that the disk could be in (tests/harness/power_cuts.py)
an aggregator is started from it:

- it starts; with a new run only if nothing was promised yet;
- it is where the uninterrupted run was at some moment, bit for bit (θ, round, ledger, and what the
  open round would become), not before the last promise and not after the last update;
- the devices send again what they have, and the run ends as the uninterrupted one does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broker.aggregator.service
from tests.harness.aggregators import Life, Plan, frozen
from tests.harness.disk_recorder import Recorder
from tests.harness.power_cuts import Disk, Known, lay_out, opened_files


def recover(plan: Plan, history: list[Any], folder: Path) -> int:
    """Starts an aggregator from what a power cut left, and lets it end the run.

    Returns the place in the history that it started from; -1 if it began a new run.
    """
    with Life(plan, folder) as life:
        place = -1 if life.is_new else history.index(frozen(life.aggregator.state))
        life.send_all()
        assert frozen(life.aggregator.state) == history[-1]
    return place


SMALL = [
    pytest.param(Plan("sync", (1, 2, 1)), 2**26, None, id="sync"),
    pytest.param(Plan("async", (1, 2, 1)), 2**26, None, id="async"),
    pytest.param(Plan("async", (2, 1)), 1, None, id="async, with snapshots"),
    pytest.param(Plan("sync", (1, 1, 1)), 2**26, 1, id="sync, after a kill"),
    pytest.param(Plan("async", (1, 2)), 2**26, 1, id="async, after a kill"),
]

# What hypothesis may draw: synchronous groups end where a round does.
ROUNDS = st.sampled_from([(3,), (1, 2), (2, 1), (1, 1, 1)])
PLANS = st.one_of(
    st.lists(ROUNDS, min_size=2, max_size=6).map(lambda rounds: Plan("sync", sum(rounds, ()))),
    st.lists(st.integers(1, 4), min_size=3, max_size=9).map(lambda n: Plan("async", tuple(n))),
)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
)
@given(data=st.data(), plan=PLANS, journal_limit=st.sampled_from([1, 800, 2**26]))
def test_one_power_cut_after_another(
    data: st.DataObject, plan: Plan, journal_limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Up to three cuts, each in the life that began from what the one before had left.

    Any number of writes may be torn. What the first life promised the third one still keeps.
    """
    history, notes = plan.history(), []
    folder = tmp_path_factory.mktemp("cuts")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(broker.aggregator.service, "JOURNAL_LIMIT", journal_limit)
        patched.setattr(os, "fsync", lambda _: None)  # only the recorder has to see it
        for number in range(data.draw(st.integers(1, 3), "cuts")):
            root = folder / f"life-{number}"
            if number == 0:
                root.mkdir()
            recorder = Recorder(root)
            with patched.context() as hooks:
                recorder.begin(hooks)
                with Life(plan, root / "state", recorder) as life:
                    life.send_all()
            disk = Disk()
            begun = recorder.begun  # before that, everything was certain
            for event in recorder.events[: data.draw(st.integers(begun, len(recorder.events)))]:
                disk.add(event)
            notes += disk.notes
            files = disk.one_state(lambda count: data.draw(st.integers(0, count - 1)))
            lay_out(files, folder / f"life-{number + 1}")
        place = recover(plan, history, folder / f"life-{number + 1}" / "state")
    assert plan.promised(notes) <= place <= plan.possible(notes)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("plan", "journal_limit", "killed_in"), SMALL)
def test_every_state_that_a_power_cut_could_leave(
    plan: Plan,
    journal_limit: int,
    killed_in: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a kill, updates may be in memory alone that the next life tells devices it has."""
    monkeypatch.setattr(broker.aggregator.service, "JOURNAL_LIMIT", journal_limit)
    history = plan.history()
    recorder = Recorder(tmp_path / "disk")
    recorder.root.mkdir()
    with monkeypatch.context() as hooks:
        recorder.begin(hooks)
        if killed_in is not None:
            with Life(plan, recorder.root / "state", recorder) as life:
                life.send_some_and_die(killed_in)
        with Life(plan, recorder.root / "state", recorder) as life:
            life.send_all()
            assert frozen(life.aggregator.state) == history[-1]
        recorder.note(("sent", plan.total))
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing is cut off any more
    disk = Disk()
    known: Known[int] = Known(measures=lambda path: "/journal-" in path)
    states, places = 0, set()
    for event in recorder.events:
        disk.add(event)
        least, most = plan.promised(disk.notes), plan.possible(disk.notes)
        for files in disk.states():
            states += 1
            place = known.result(files)
            try:
                if place is None:
                    lay_out(files, tmp_path / "cut")
                    with opened_files(tmp_path / "cut") as opened:
                        place = recover(plan, history, tmp_path / "cut" / "state")
                    known.learn(files, opened, place)
                    shutil.rmtree(tmp_path / "cut")
                assert least <= place <= most
            except BaseException as error:
                error.add_note(f"after {event!r:.300}: { {n: len(d) for n, d in files.items()} }")
                raise
            places.add((least, place))
    assert states > 200, "the recorder saw little"
    assert {place for _, place in places} == set(range(-1, len(history))), "some moment was missed"
    assert any(place > least for least, place in places), "nothing unpromised ever survived"
