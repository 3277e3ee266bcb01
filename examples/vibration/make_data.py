"""Windows of a machine's vibration: four states, each a tone on six axes, in noise.

    x[t, axis] = 0.6 · sin(2π · f · t + phase[axis]) + noise

t runs from 0 to 1 in a window; f is 4, 9, 15 or 22 periods in a window, by the state, and up to
10 % off; the phases are random.
"""

import argparse
from pathlib import Path

import numpy as np

SAMPLES, AXES = 128, 6  # of a window
PERIODS = (4.0, 9.0, 15.0, 22.0)  # in a window, one for each state of the machine
LOUDNESS, NOISE = 0.6, 0.4


def windows(states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns one window for each state, as float32[count, 128, 6]."""
    time = np.arange(SAMPLES) / SAMPLES
    frequency = np.take(PERIODS, states) * rng.uniform(0.9, 1.1, len(states))
    phase = rng.uniform(0, 2 * np.pi, (len(states), 1, AXES))
    angle = 2 * np.pi * frequency[:, None, None] * time[None, :, None] + phase
    noise = rng.normal(0, NOISE, angle.shape)
    return (LOUDNESS * np.sin(angle) + noise).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/vibration.npz"))
    parser.add_argument("--train", type=int, default=1200, help="windows (default 1200)")
    parser.add_argument("--test", type=int, default=400, help="windows (default 400)")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    y = rng.integers(0, len(PERIODS), args.train + args.test).astype(np.int32)
    x = windows(y, rng)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    n = args.train
    np.savez(args.out, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    print(f"{args.out}: {n} windows to train with, {args.test} to test with")


if __name__ == "__main__":
    main()
