"""Is the fleet worth it? Four devices watch the same stream at the same time, for several seeds.

node and gateway learn together over a broker, node-alone and gateway-alone each for itself. When
the stream ends, all four are asked for the states of fresh windows of the worn machines, every
state as often. All train until the stream has ended and the fleet has done its rounds. Prints the
accuracies, and fleet minus alone with its standard error.
"""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import STATES, publish, windows

from broker.brokers.mosquitto_process import Mosquitto
from broker.log import Log
from firmware_sim import Device

HERE = Path(__file__).parent
BUNDLES = {"node": "build/node", "gateway": "build/gateway"}
TESTED = 400  # windows
STEPS = 40  # of a round


def run(
    seed: int, seconds: float, rate: float, late: float, rounds: int, folder: Path
) -> dict[str, float]:
    """Returns the accuracy of each device after one stream."""
    rng = np.random.default_rng((seed, 1))
    states = np.arange(TESTED) % STATES
    fresh = windows(states, 1.0, rng)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(folder / "mosquitto"))
        slices = [f"--slice={bundle}/shared.onnx" for bundle in BUNDLES.values()]
        command = [
            "--fleet",
            "machines",
            "--state",
            str(folder / "fleet"),
            "--quorum",
            "2",
            *slices,
        ]
        aggregator = subprocess.Popen(
            [sys.executable, "-m", "broker.aggregator", "--broker", str(broker.address), *command],
            stderr=subprocess.DEVNULL,
        )
        stack.callback(aggregator.wait)
        stack.callback(aggregator.terminate)
        devices, logs = {}, {name: io.StringIO() for m in BUNDLES for name in (m, f"{m}-alone")}
        for machine, bundle in BUNDLES.items():
            for name, fleet in ((machine, "machines"), (f"{machine}-alone", None)):
                devices[name] = stack.enter_context(
                    Device(
                        bundle,
                        state=folder / name,
                        broker=str(broker.address),
                        fleet=fleet,
                        id=name,
                        seed=seed,
                        source=f"mqtt:machine/{machine}",
                        source_config=HERE / f"{machine}.toml",
                        steps=STEPS,
                        evaluate_every=1000,
                        log=Log(logs[name], as_json=True),
                    )
                )
        time.sleep(2)  # until all have subscribed
        port = broker.address.port
        publish("127.0.0.1", port, seconds=seconds, rate=rate, seed=seed, late=late)
        time.sleep(late)  # for the last labels
        while min(rounds_in(logs[name]) for name in BUNDLES) < rounds:
            time.sleep(0.5)
        return {
            name: float(np.mean([device.predict(x).label for x in fresh] == states))
            for name, device in devices.items()
        }


def rounds_in(log: io.StringIO) -> int:
    """Returns the number of rounds that a device says it has trained."""
    return log.getvalue().count('"event": "trained"')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="of a stream (default 30)")
    parser.add_argument("--rate", type=float, default=20, help="windows a second (default 20)")
    parser.add_argument("--late", type=float, default=5, help="seconds of a label (default 5)")
    parser.add_argument("--rounds", type=int, default=30, help="of the fleet (default 30)")
    args = parser.parse_args()
    found = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            stream = args.seconds, args.rate, args.late
            found.append(run(seed, *stream, args.rounds, Path(folder)))
        said = "  ".join(f"{name} {score:.3f}" for name, score in found[-1].items())
        print(f"seed {seed}: {said}", flush=True)
    for machine in BUNDLES:
        gains = np.array([scores[machine] - scores[f"{machine}-alone"] for scores in found])
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
        print(f"{machine}: fleet minus alone {100 * gains.mean():+.1f} ± {100 * error:.1f} points")


if __name__ == "__main__":
    main()
