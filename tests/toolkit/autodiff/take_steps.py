"""Trains a converted model in a process of its own: python take_steps.py RUNTIME FOLDER STEPS.

tflite-runtime breaks if TensorFlow was imported before it, and a device has no TensorFlow either.
FOLDER holds model.tflite and batch.npz; answer.npz gets the losses and the final state.
"""

import importlib
import sys
from pathlib import Path

import numpy as np


def main(runtime: str, folder: Path, steps: int) -> None:
    module = importlib.import_module(f"{runtime.replace('-', '_')}.interpreter")
    interpreter = module.Interpreter(model_path=str(folder / "model.tflite"), num_threads=1)
    train = interpreter.get_signature_runner("train")
    batch = dict(np.load(folder / "batch.npz"))
    losses = [train(**batch)["loss"] for _ in range(steps)]
    state = interpreter.get_signature_runner("get_state")()
    np.savez(folder / "answer.npz", losses=np.array(losses), **state)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
