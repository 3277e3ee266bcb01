"""Makes the tuning files that ship: every layer of the zoo, in both runtimes.

    python -m toolkit.tuning.zoo

It takes minutes; nothing else should run meanwhile. What shipped before stays where it is as good
as the fastest, so that noise changes nothing.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from firmware_sim.training.runtime import RUNTIMES
from toolkit import zoo
from toolkit.autodiff.lower import Layer, part_bytes
from toolkit.tuning.candidates import write_candidates
from toolkit.tuning.layers import layers_of
from toolkit.tuning.measuring import time_candidates

BATCH = 32  # of every shipped profile
THREADS = 1
AS_GOOD = 1.03  # times the fastest


def zoo_layers() -> list[Layer]:
    """Each distinct layer of the zoo's branches once."""
    found = (layer for names in zoo.names() for layer in layers_of(zoo.build(*names)))
    return list(dict.fromkeys(found))


def main() -> None:
    layers = zoo_layers()
    with tempfile.TemporaryDirectory() as folder:
        for runtime in RUNTIMES:
            candidates = Path(folder) / runtime
            size = part_bytes(runtime)
            write_candidates(layers, BATCH, candidates, part_bytes=size, progress=print)
            file = Path(__file__).with_name(f"{runtime}.json")
            before = json.loads(file.read_bytes())["layers"]
            time_candidates(candidates, file, runtime=runtime, threads=THREADS)
            found = json.loads(file.read_bytes())
            for name, layer in found["layers"].items():
                _keep(layer, before.get(name))
            file.write_text(json.dumps(found, indent=1) + "\n")
            print(f"wrote {file.name}")


def _keep(layer: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Chooses what was chosen before, if it is still as good."""
    seconds = layer["seconds"]
    earlier = before and seconds.get(before["formulation"])
    if before and earlier and earlier <= AS_GOOD * min(seconds.values()):
        layer["formulation"] = before["formulation"]


if __name__ == "__main__":
    main()
