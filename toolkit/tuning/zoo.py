"""Makes the tuning files that ship: every layer of the zoo, in both runtimes.

    python -m toolkit.tuning.zoo

It takes minutes; nothing else should run meanwhile.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from firmware_sim.runtime import RUNTIMES
from toolkit import zoo
from toolkit.autodiff.lower import Layer, part_bytes
from toolkit.tuning.candidates import write_candidates
from toolkit.tuning.layers import layers_of
from toolkit.tuning.measuring import time_candidates

BATCH = 32  # of every shipped profile
THREADS = 1


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
            time_candidates(candidates, file, runtime=runtime, threads=THREADS)
            print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
