"""Trains on batches through `take_batch`: python take_micro_batches.py RUNTIME FOLDER ….

FOLDER holds model.tflite and batches.npz ('3/x' is input x of batch 3); answers.npz gets the
losses, the state after all batches, and then dθ_shared of the first two. evaluated.npz gets what
`evaluate` answers at first to the first examples, if there is such a signature.
"""

import sys
from pathlib import Path

import numpy as np

from firmware_sim.tensor_spec import Array
from firmware_sim.training.runtime import Model
from firmware_sim.training.steps import take_batch


def main(runtime: str, folder: Path) -> None:
    batches: dict[int, dict[str, Array]] = {}
    for key, value in np.load(folder / "batches.npz").items():
        number, name = key.split("/")
        batches.setdefault(int(number), {})[name] = value
    model = Model(folder / "model.tflite", runtime=runtime)
    if "evaluate" in model.signatures:
        size = model.inputs("evaluate")["x"].shape[0]
        first = {name: rows[:size] for name, rows in batches[0].items()}
        np.savez(folder / "evaluated.npz", **model.call("evaluate", **first))
    losses = [take_batch(model, "train", **batch) for batch in batches.values()]
    answers: dict[str, Array] = {"losses": np.array(losses)}
    answers |= {f"trained:{name}": value for name, value in model.call("get_state").items()}
    for number in (0, 1):
        take_batch(model, "accumulate", **batches[number])
    answers |= {f"dθ:{name}": value for name, value in model.call("apply").items()}
    np.savez(folder / "answers.npz", **answers)


if __name__ == "__main__":
    for folder in sys.argv[2:]:
        main(sys.argv[1], Path(folder))
