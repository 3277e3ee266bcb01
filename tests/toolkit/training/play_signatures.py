"""Plays every signature of a model: python play_signatures.py RUNTIME FOLDER.

FOLDER holds model.tflite (and prefix.tflite, if the branch has one) and batches.npz ('3/x' is input
x of batch 3); answers.npz gets what the signatures answered. A device has no TensorFlow, and
tflite-runtime cannot be loaded beside it.
"""

import sys
from pathlib import Path

import numpy as np

from firmware_sim.tensor_spec import Array
from firmware_sim.training.prefixed import load_model
from firmware_sim.training.runtime import Model


def main(runtime: str, folder: Path) -> None:
    batches: dict[int, dict[str, Array]] = {}
    for key, value in np.load(folder / "batches.npz").items():
        number, name = key.split("/")
        batches.setdefault(int(number), {})[name] = value
    answers: dict[str, Array] = {}

    def keep(label: str, found: dict[str, Array]) -> None:
        answers.update({f"{label}:{name}": value for name, value in found.items()})

    def fresh() -> Model:
        prefix = folder / "prefix.tflite"
        return load_model(
            folder / "model.tflite", prefix if prefix.exists() else None, runtime=runtime
        )

    model = fresh()
    keep("start", model.call("get_state"))
    frame = next(iter(batches[0].values()))[:1]
    keep("infer", model.call("infer", x=frame))
    if "evaluate" in model.signatures:
        keep("evaluate", model.call("evaluate", **batches[0]))
    half = len(batches) // 2
    losses = []
    for number in range(len(batches)):
        if number == half:
            middle = model.call("get_state")
        losses.append(model.call("train", **batches[number])["loss"])
    answers["losses"] = np.array(losses)
    keep("end", model.call("get_state"))

    model = fresh()  # as after a power cut
    model.call("set_state", **middle)
    resumed = [model.call("train", **batches[n])["loss"] for n in range(half, len(batches))]
    answers["resumed losses"] = np.array(resumed)
    keep("resumed", model.call("get_state"))

    model = fresh()
    model.call("train", **batches[0])
    keep("trained once", model.call("get_state"))

    model = fresh()
    model.call("accumulate", **batches[0])
    keep("dθ once", model.call("apply"))
    keep("applied once", model.call("get_state"))
    for number in (1, 2):
        model.call("accumulate", **batches[number])
    keep("dθ twice", model.call("apply"))

    shared = {name: value + 1 for name, value in model.call("get_shared").items()}
    keep("shared before", model.call("get_shared"))
    model.call("set_shared", **shared)
    keep("shared after", model.call("get_shared"))
    if "sync_target" in model.signatures:
        model.call("sync_target")
    keep("synchronised", model.call("get_state"))
    np.savez(folder / "answers.npz", **answers)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
