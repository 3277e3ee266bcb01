"""Chromium without a window, for screenshots and tests."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def browser(folder: Path, *, width: int = 1360, height: int = 1000) -> Iterator[Any]:
    """Yields selenium's driver of the chromium that is installed here."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        raise SystemExit("chromium or chromedriver is missing: run scripts/install-chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--force-prefers-reduced-motion",
        f"--window-size={width},{height}",
        f"--user-data-dir={folder}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield running
    finally:
        running.quit()


def wait_for_port(port: int, patience: float = 60.0) -> None:
    """Returns when something listens there."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens at port {port}.")


def resize(driver: Any, width: int, height: int) -> None:
    """Makes the page that wide, also narrower than a window may be."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver: Any, theme: str) -> None:
    """Makes the browser prefer a light or dark page."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def problems(driver: Any) -> list[str]:
    """Returns what the console of the browser says of errors."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
