"""Converts a folder of pictures, with one folder per class, to an .npz file for training."""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

SUFFIXES = (".png", ".jpg", ".jpeg")


def classes_of(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    if len(found) < 2:
        sys.exit(f"error: {folder} must hold a folder for each of at least two classes.")
    return found


def read(file: Path, size: int) -> np.ndarray:
    """Returns the picture as uint8[size, size, 3]."""
    try:
        with Image.open(file) as picture:
            return np.asarray(picture.convert("RGB").resize((size, size)))
    except (UnidentifiedImageError, OSError) as error:
        sys.exit(f"error: {file} cannot be read as a picture ({error}).")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=16, help="pixels of a side (default 16)")
    parser.add_argument("--out", type=Path, default=Path("build/pictures.npz"))
    args = parser.parse_args()
    images, labels = [], []
    classes = classes_of(args.folder)
    for label, folder in enumerate(classes):
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES)
        images += [read(file, args.size) for file in files]
        labels += [label] * len(files)
    if not images:
        sys.exit(f"error: there is no {' or '.join(SUFFIXES)} file in {args.folder}.")
    # In random order, so that with --share each device has examples of every class.
    order = np.random.default_rng(0).permutation(len(images))
    x, y = np.stack(images)[order], np.array(labels, np.int32)[order]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # A device tests with every fifth example; an int8 export calibrates with x.
    np.savez(args.out, images=x, labels=y, x=x[:256])
    names = ", ".join(folder.name for folder in classes)
    print(f"{args.out}: {len(x)} pictures {list(x.shape[1:])} of {len(classes)} classes ({names})")


if __name__ == "__main__":
    main()
