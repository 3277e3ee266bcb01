"""A device learns what a healthy machine sounds like, and then says what it has never heard.

The machine of the live vibration example publishes on a broker that this script starts. The device
learns from it without labels. Then it is asked about fresh windows: of the healthy machine, and of
one whose bearing rattles.
"""

import argparse
import io
import sys
import time
from pathlib import Path

import numpy as np

from broker.brokers.embedded import EmbeddedBroker
from broker.log import Log
from firmware_sim import Device

sys.path.append(str(Path(__file__).parents[1] / "live_vibration"))
from machine import USUAL, publish, windows

SETTINGS = Path(__file__).parents[1] / "live_vibration" / "gateway.toml"


def rattling(healthy: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns windows with a knock every 16 samples, on all axes."""
    knocks = np.zeros_like(healthy)
    knocks[:, rng.integers(16) :: 16] = 2.5
    return healthy + knocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40, help="of learning (default 40)")
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    states = rng.choice(4, 200, p=USUAL["gateway"])
    with (
        EmbeddedBroker() as broker,
        Device(
            "build/autoencoder",
            state="state/anomaly",
            broker=str(broker.address),
            source="mqtt:machine/gateway",
            source_config=SETTINGS,
            log=Log(io.StringIO()),
        ) as device,
    ):
        time.sleep(1)
        publish(broker.host, broker.port, seconds=args.seconds, rate=20, seed=0, late=1)
        while "anomaly_threshold" not in device.scores:
            time.sleep(0.2)
        print({name: round(score, 4) for name, score in device.scores.items()})
        healthy = windows(states, 1.0, rng)
        for name, asked in (("healthy", healthy), ("rattling", rattling(healthy, rng))):
            answers = [device.predict(window) for window in asked]
            part = np.mean([answer.anomalous for answer in answers])
            score = np.mean([answer.score for answer in answers])
            print(f"{name}: {part:.0%} anomalous, mean score {score:.3f}")


if __name__ == "__main__":
    main()
