"""Writes a demonstration folder: PNG and JPEG files of handwritten digits, one folder per class."""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

PIXELS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/pictures"))
    parser.add_argument("--of-each", type=int, default=120, help="pictures of a class (120)")
    args = parser.parse_args()
    digits = load_digits()
    for label in range(10):
        folder = args.out / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(digits.images[digits.target == label][: args.of_each]):
            picture = Image.fromarray((image * 255 / 16).astype(np.uint8)).convert("RGB")
            suffix = "png" if number % 2 else "jpg"
            picture.resize((PIXELS, PIXELS)).save(folder / f"{number:03}.{suffix}")
    print(f"{args.out}: 10 classes")


if __name__ == "__main__":
    main()
