"""A fleet of three is watched in a real browser.

An aggregator in a process, three agents in threads, mosquitto, the dashboard in a process and
chromium. Expected: curves grow, a device that leaves is shown offline, one is paused and resumed
from the page, and the console of the browser has no error.
"""

import contextlib
import itertools
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import (
    ElementNotInteractableException,
    StaleElementReferenceException,
)

from scripts.screenshots.browser import browser, problems, resize, wait_for_port
from tests.harness.programs import TOPICS, Programs
from tests.harness.scripted import ScriptedDevice
from tests.harness.slices import SliceFile
from tests.harness.waiting import wait_until
from toolkit.fleet.processes import Child

pytestmark = pytest.mark.xdist_group("fleet")


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Any]:
    with browser(tmp_path / "chromium") as driver:
        yield driver


@pytest.fixture
def page(programs: Programs, tmp_path: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = ["--fleet", TOPICS.fleet, "--broker", str(programs.broker)]
    options = ["dashboard", "--steer", "--http", f"127.0.0.1:{port}", *link]
    with pytest.MonkeyPatch.context() as changed:
        changed.delenv("PYTEST_CURRENT_TEST")  # with it the library takes another port
        child = Child("dashboard", "toolkit", options, tmp_path / "dashboard.log")
    programs.children.append(child)
    wait_for_port(port)
    return f"http://127.0.0.1:{port}/"


def text_of(driver: Any, element: str) -> str:
    """What an element of the page says; "" while it is not there, or is being replaced."""
    script = "return document.getElementById(arguments[0])?.innerText ?? ''"
    return str(driver.execute_script(script, element))


def shown_rounds(driver: Any) -> int:
    """The newest round of the learning curves, as a screen reader says it."""
    script = "return document.getElementById('curves')?.getAttribute('aria-label') ?? ''"
    found = re.search(r"of 3 devices up to round (\d+)", driver.execute_script(script))
    return int(found[1]) if found else 0


def state_of(driver: Any, device: str) -> str:
    """What the row of a device says that it is doing."""
    script = (
        "return [...document.querySelectorAll('#devices tr')].find(r => r.innerText"
        ".startsWith(arguments[0]))?.querySelector('[data-state]')?.dataset.state ?? ''"
    )
    return str(driver.execute_script(script, device))


def press(driver: Any, selector: str) -> None:
    """Presses a button by the keyboard: everything can be reached by it."""

    def pressed() -> bool:
        with contextlib.suppress(StaleElementReferenceException, ElementNotInteractableException):
            for element in reversed(driver.find_elements("css selector", selector)):
                element.send_keys("\n")
                return True
        return False

    wait_until(pressed, f"a button {selector}")


def test_a_fleet_is_seen(
    page: str,
    chromium: Any,
    programs: Programs,
    small_slice: SliceFile,
    scripted: Callable[..., ScriptedDevice],
) -> None:
    programs.aggregator("--slice", small_slice.path, "--quorum", "1", "--deadline", "5")
    devices = [scripted(f"pi-{i}", small_slice.slice, seed=i, pace=slowly) for i in range(3)]
    for device in devices:
        rising = itertools.count()
        device.learner.evaluate = lambda n=rising: {"accuracy": 1 - 1 / (2 + next(n))}  # type: ignore
    chromium.get(page)
    first = wait_until(lambda: shown_rounds(chromium), "the first curves")
    wait_until(lambda: shown_rounds(chromium) >= first + 3, "curves that grow")
    assert "sync · samples · delta" in chromium.page_source
    assert "first/kernel" in text_of(chromium, "tensors")
    assert {state_of(chromium, f"pi-{i}") for i in range(3)} <= {"training", "waiting"}

    devices[2].close()
    wait_until(lambda: state_of(chromium, "pi-2") == "offline", "pi-2 offline")
    assert state_of(chromium, "pi-0") in ("training", "waiting")

    press(chromium, "[aria-label='details of pi-0']")
    wait_until(lambda: "Leaves the device" in chromium.page_source, "the details of pi-0")
    assert "3 tensors, 200 B as float32" in chromium.page_source
    press(chromium, "#pause")
    wait_until(lambda: state_of(chromium, "pi-0") == "paused", "pi-0 paused")
    assert "operator: the operator has paused it" in text_of(chromium, "devices")
    at = shown_rounds(chromium)
    wait_until(lambda: shown_rounds(chromium) > at, "rounds without pi-0")
    press(chromium, "[aria-label='details of pi-0']")
    press(chromium, "#resume")
    wait_until(lambda: state_of(chromium, "pi-0") in ("training", "waiting"), "pi-0 goes on")

    resize(chromium, 390, 800)
    wide = "return document.documentElement.scrollWidth"
    wait_until(lambda: chromium.execute_script(wide) <= 390, "a page as wide as a phone")
    assert problems(chromium) == []


def slowly() -> None:
    """A round takes a moment, so that there is something to see between two of them."""
    time.sleep(0.15)
