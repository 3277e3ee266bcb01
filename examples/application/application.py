"""A machine's panel: says in which state the machine is, and learns from the person beside it."""

import sys
from pathlib import Path

import numpy as np

from firmware_sim import Device

sys.path.append(str(Path(__file__).parents[1] / "live_vibration"))
from machine import PERIODS, windows

STATES = ("idle", "slow", "fast", "worn")
rng = np.random.default_rng(0)
fleet = {"broker": sys.argv[1], "fleet": "machines", "id": "panel"} if sys.argv[1:] else {}
right, asked, keys = 0, 0, []

with Device("build/node", state="state/panel", **fleet) as device:
    for number in range(1500):
        state = int(rng.integers(len(PERIODS)))  # the truth, which only the person knows
        window = windows(np.array([state]), 0.0, rng)[0]  # what the sensor delivers
        said = device.predict(window)
        right, asked = right + (said.label == state), asked + 1
        keys.append((device.observe(window), state))  # without a label for now
        if len(keys) == 20:  # the person looks at the last windows
            for key, label in keys:
                device.label(key, label)
            keys.clear()
        if asked == 250:
            print(f"window {number + 1}: it says {STATES[said.label]}; {right / asked:.0%} right")
            right, asked = 0, 0
