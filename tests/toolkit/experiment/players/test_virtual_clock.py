"""Devices take their rounds in the order in which these would end, however threads run."""

import threading
import time
from collections.abc import Callable

import pytest

from firmware_sim.errors import Stopped
from toolkit.experiment.players.virtual_clock import VirtualClock


def never() -> None:
    """Nobody wants us to stop."""


def run(clock: VirtualClock, delays: dict[str, float]) -> list[tuple[str, bool]]:
    """Every device arrives, takes a round and arrives again until none counts."""
    taken: list[tuple[str, bool]] = []

    def device(name: str) -> None:
        counts = True
        while counts:
            time.sleep(delays[name])
            clock.mark_ready(name)
            counts = clock.wait_for_round(name, never)
            taken.append((name, counts))
        clock.mark_ready(name)

    threads = [threading.Thread(target=device, args=(name,)) for name in delays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return taken


@pytest.mark.parametrize("delays", [{"p": 0.0, "w": 0.01}, {"p": 0.01, "w": 0.0}])
def test_the_one_whose_round_ends_first_is_next(delays: dict[str, float]) -> None:
    taken = run(VirtualClock({"w": (2.0, 2), "p": (1.0, 4)}), delays)
    # p ends at 1, 2, 3 and 4, w at 2 and 4; of equal ends that of the first name comes first.
    assert [name for name, counts in taken if counts] == ["p", "p", "w", "p", "p", "w"]
    assert sorted(name for name, counts in taken[-2:]) == ["p", "w"]
    assert [counts for _, counts in taken] == [True] * 6 + [False] * 2


def test_who_waits_can_be_stopped() -> None:
    clock = VirtualClock({"p": (1.0, 1), "w": (1.0, 1)})
    clock.mark_ready("p")  # w never comes

    def stop() -> None:
        raise Stopped

    stopping: Callable[[], None] = stop
    with pytest.raises(Stopped):
        clock.wait_for_round("p", stopping)
