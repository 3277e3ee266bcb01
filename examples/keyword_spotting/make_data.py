"""Six "words" as short waveforms with noise: low, high, rising, falling, low-high, high-low."""

import argparse
from pathlib import Path

import numpy as np

SAMPLES, RATE = 512, 1000  # samples per word; samples per second
LOW, HIGH = 60.0, 140.0  # Hz; every speaker is up to 15 % off
WORDS = ("low", "high", "rising", "falling", "low-high", "high-low")


def pitch(word: str, time: np.ndarray) -> np.ndarray:
    """Returns the frequency in Hz at each `time` between 0 and 1."""
    steps = {"low-high": time >= 0.5, "high-low": time < 0.5}
    match word:
        case "low" | "high":
            return np.full_like(time, LOW if word == "low" else HIGH)
        case "rising" | "falling":
            return LOW + (HIGH - LOW) * (time if word == "rising" else 1 - time)
    return np.where(steps[word], HIGH, LOW)


def speak(word: str, rng: np.random.Generator, noise: float) -> np.ndarray:
    """Returns one recording: sin(2π ∫ f dt) with random start, loudness and pitch, in noise."""
    length = int(rng.integers(SAMPLES // 2, SAMPLES))
    frequency = pitch(word, np.linspace(0, 1, length)) * rng.uniform(0.85, 1.15)
    tone = np.sin(2 * np.pi * np.cumsum(frequency) / RATE + rng.uniform(0, 2 * np.pi))
    wave = rng.normal(0, noise, SAMPLES)
    start = int(rng.integers(0, SAMPLES - length + 1))
    wave[start : start + length] += rng.uniform(0.5, 1.5) * tone
    return wave


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/keywords.npz"))
    parser.add_argument("--train", type=int, default=2000, help="recordings (default 2000)")
    parser.add_argument("--test", type=int, default=600, help="recordings (default 600)")
    parser.add_argument("--noise", type=float, default=0.6, help="beside a tone of 0.5 to 1.5")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    y = rng.integers(0, len(WORDS), args.train + args.test)
    x = np.stack([speak(WORDS[label], rng, args.noise) for label in y])
    x, y = x[..., None].astype(np.float32), y.astype(np.int32)  # [recordings, samples, 1]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    n = args.train
    np.savez(args.out, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    print(f"{args.out}: {n} recordings to train with, {args.test} to test with")


if __name__ == "__main__":
    main()
