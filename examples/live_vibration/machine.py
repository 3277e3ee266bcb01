"""Two machines that vibrate, each with a sensor that publishes its windows on MQTT.

A machine is in one of four states, each a tone on six axes in noise. It wears out while it runs:

    x[t, axis] = loudness · sin(2π · f · t + phase[axis]) + noise
    loudness   = 0.6 − 0.2 · wear
    f          = periods of the state · (1 + 0.15 · wear), and up to 10 % off

wear goes from 0 to 1 over the run. The machine of the node is mostly in states 2 and 3, that of the
gateway mostly in 0 and 1. The gateway's windows come with their labels. The node's come without;
a person looks at each a while later, and the label comes on a topic of its own.

    machine/gateway   {"samples": [768 numbers], "label": 1}
    machine/node      {"samples": [768 numbers], "id": "17"}
    machine/labels    {"id": "17", "label": 3}
"""

import argparse
import json
import time
from collections import deque
from urllib.parse import urlsplit

import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

SAMPLES, AXES, STATES = 128, 6, 4
PERIODS = (4.0, 9.0, 15.0, 22.0)  # in a window, one for each state
NOISE = 0.4
USUAL = {"gateway": (0.47, 0.47, 0.03, 0.03), "node": (0.03, 0.03, 0.47, 0.47)}  # of the states
EVERY = {"gateway": 1, "node": 2}  # the node's sensor sends every second time


def windows(states: np.ndarray, wear: float, rng: np.random.Generator) -> np.ndarray:
    """Returns one window for each state, as float32[count, 128, 6]."""
    t = np.arange(SAMPLES) / SAMPLES
    worn = 1 + 0.15 * wear
    frequency = np.take(PERIODS, states) * worn * rng.uniform(0.9, 1.1, len(states))
    phase = rng.uniform(0, 2 * np.pi, (len(states), 1, AXES))
    tone = np.sin(2 * np.pi * frequency[:, None, None] * t[None, :, None] + phase)
    noise = rng.normal(0, NOISE, tone.shape)
    return ((0.6 - 0.2 * wear) * tone + noise).astype(np.float32)


def connected(host: str, port: int) -> mqtt.Client:
    """Returns a client of the broker; it may be starting at the moment."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    for _ in range(100):
        try:
            client.connect(host, port)
            return client
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"error: there is no broker at {host} port {port}.")


def publish(host: str, port: int, *, seconds: float, rate: float, seed: int, late: float) -> None:
    """Publishes `rate` windows a second; the node's labels come `late` seconds after them."""
    client = connected(host, port)
    client.loop_start()
    rng = np.random.default_rng(seed)
    waiting: deque[tuple[float, str, int]] = deque()  # labels of the node
    begin = time.monotonic()
    count = round(seconds * rate)
    for number in range(count):
        for machine, usual in USUAL.items():
            state = int(rng.choice(STATES, p=usual))
            window = windows(np.array([state]), number / count, rng)[0]
            message = {"samples": np.round(window.reshape(-1), 3).tolist()}
            if machine == "gateway":
                message["label"] = state
            else:
                message["id"] = str(number)
            if number % EVERY[machine] == 0:
                client.publish(f"machine/{machine}", json.dumps(message), qos=1)
                if machine == "node":
                    waiting.append((time.monotonic() + late, str(number), state))
        while waiting and waiting[0][0] <= time.monotonic():
            _, name, state = waiting.popleft()
            client.publish("machine/labels", json.dumps({"id": name, "label": state}), qos=1)
        time.sleep(max(0.0, begin + (number + 1) / rate - time.monotonic()))
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--broker", default="mqtt://127.0.0.1:1883")
    parser.add_argument("--seconds", type=float, default=60, help="of the run (default 60)")
    parser.add_argument("--rate", type=float, default=20, help="windows a second (default 20)")
    parser.add_argument("--late", type=float, default=5, help="seconds of a label (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    broker = urlsplit(args.broker)
    stream = {"seconds": args.seconds, "rate": args.rate, "seed": args.seed, "late": args.late}
    publish(broker.hostname or "", broker.port or 1883, **stream)
