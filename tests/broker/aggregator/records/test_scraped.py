"""What Prometheus reads from an aggregator."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.aggregator.records.scraped import MOST_DEVICES, Scraped, serve_metrics
from broker.errors import SettingsRefused
from broker.metrics import metrics_text

ROOT = Path(__file__).parents[4]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(scraped: Scraped) -> Samples:
    """What a scrape over HTTP finds, by name and labels."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = serve_metrics(scraped, port)
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def published(**values: float) -> bytes:
    return metrics_text({f"device_{name}": value for name, value in values.items()}).encode()


def test_numbers_have_their_device_and_profile() -> None:
    scraped = Scraped()
    scraped.aggregator = {"round": 7.0, 'refused{reason="late"}': 2.0}
    scraped.born("pi-1", 'we"ak')
    scraped.born("pi-2", "weak")
    scraped.metrics("pi-1", published(accuracy=0.5, round=7))
    scraped.metrics(
        "pi-2", published(accuracy=0.7) + b'stemshare_device_waiting_seconds{cause="battery"} 3\n'
    )
    scraped.metrics("stranger", published(accuracy=1.0))
    found = scrape(scraped)
    one, two = (("device", "pi-1"), ("profile", 'we"ak')), (("device", "pi-2"), ("profile", "weak"))
    assert found == {
        ("stemshare_round", ()): 7.0,
        ("stemshare_refused", (("reason", "late"),)): 2.0,
        ("stemshare_device_accuracy", one): 0.5,
        ("stemshare_device_round", one): 7.0,
        ("stemshare_device_accuracy", two): 0.7,
        ("stemshare_device_waiting_seconds", (("cause", "battery"), *two)): 3.0,
    }
    scraped.gone("pi-1")
    assert not any(one == labels for _, labels in scrape(scraped))


def test_what_a_device_publishes_cannot_break_a_scrape() -> None:
    scraped = Scraped()
    scraped.born("pi-1", "weak")
    lines = (
        b"stemshare_device_x 1\n"
        b'stemshare_device_y{device="pi-2"} 1\n'
        b"stemshare_round 99\n"
        b"stemshare_device_z one\n"
        b"\xff\n"
        b"stemshare_device_nan nan\n"
    )
    scraped.metrics("pi-1", lines)
    assert {name for name, _ in scrape(scraped)} == {"stemshare_device_x", "stemshare_device_nan"}
    scraped.metrics("pi-1", b"stemshare_device_x 2\n" * 100_000)  # too large: as before
    assert {name for name, _ in scrape(scraped)} == {"stemshare_device_x", "stemshare_device_nan"}


def test_devices_are_bounded() -> None:
    scraped = Scraped()
    for number in range(MOST_DEVICES + 10):
        scraped.born(f"pi-{number}", "weak")
        scraped.metrics(f"pi-{number}", published(round=1))
    assert len(scrape(scraped)) == MOST_DEVICES


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsRefused, match=r"cannot be served at 127.0.0.1"):
            serve_metrics(Scraped(), taken.getsockname()[1])


def test_the_dashboard_of_grafana_asks_for_numbers_that_there_are() -> None:
    page = json.loads((ROOT / "examples" / "grafana" / "dashboard.json").read_text())
    asked = {t["expr"] for panel in page["panels"] for t in panel["targets"]}
    names = {name for expr in asked for name in re.findall(r"stemshare_(\w+)", expr)}
    known = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    of_devices = {n.removeprefix("device_") for n in names if n.startswith("device_")}
    assert of_devices == {
        "accuracy",
        "train_loss",
        "memory_bytes",
        "memory_cap_bytes",
        "temperature_celsius",
    }
    for name in names - {f"device_{n}" for n in of_devices}:
        assert f"`{name}`" in known or f"`{name}{{" in known, name
