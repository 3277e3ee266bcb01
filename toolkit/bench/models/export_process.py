"""One network in a process of its own: python -m … FAMILY full|head BATCH RUNTIME FILE.

Prints JSON: how far the gradients are from TensorFlow's, and what the conversion took; FILE gets
the converted model.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from toolkit.autodiff import run
from toolkit.autodiff.lower import lower
from toolkit.autodiff.naming import named_variables
from toolkit.bench.models.families import CLASSES, build
from toolkit.branch.branch import Branch
from toolkit.conversion.convert import convert_module
from toolkit.conversion.signature import Signature
from toolkit.errors import ToolkitError
from toolkit.training.module import TrainingModule
from toolkit.tuning.files import shipped

_COMPARED = 2  # examples


class _Training(TrainingModule):
    """`train`, and what keeps its variables variable."""

    def signatures(self) -> dict[str, Signature]:
        every = super().signatures()
        return {name: every[name] for name in ("train", "get_state", "set_state")}


def gradient_error(branch: Branch, runtime: str) -> float:
    """|g - g'| / |g'| over all trained tensors, g' by TensorFlow; without dropout, if there is."""
    model, rng = branch.model, np.random.default_rng(0)
    program = branch.trace(batch=_COMPARED, training=True)
    training = not any("Random" in node.op for node in program.nodes)
    program = lower(branch.trace(batch=_COMPARED, training=training), shipped(runtime))
    x = tf.constant(rng.uniform(0, 255, (_COMPARED, *branch.input_shape)), tf.float32)
    seed = tf.constant(rng.normal(size=(_COMPARED, CLASSES)), tf.float32)
    weights = {name: tf.constant(v) for name, v in named_variables(model).items()}
    found = run(program, weights, x).gradients({program.y: seed}, branch.trainable_names)
    variables = {name: named_variables(model)[name] for name in branch.trainable_names}
    with tf.GradientTape() as tape:
        y = model(x, training=training)
    expected = tape.gradient(y, {n: v.value for n, v in variables.items()}, seed)
    apart = sum(float(tf.reduce_sum((found[n] - expected[n]) ** 2)) for n in variables)
    size = sum(float(tf.reduce_sum(expected[n] ** 2)) for n in variables)
    return float(np.sqrt(apart / size))


def main(family: str, mode: str, batch: int, runtime: str, out: Path) -> dict[str, Any]:
    branch = build(family, head_only=mode == "head")
    report: dict[str, Any] = {"parameters": int(branch.model.count_params())}
    try:
        report["gradient_error"] = gradient_error(branch, runtime)
        begun = time.perf_counter()
        data = convert_module(_Training(branch, batch=batch, runtime=runtime))
    except ToolkitError as error:
        return report | {"refused": str(error)}
    out.write_bytes(data)
    return report | {"export_seconds": time.perf_counter() - begun, "bytes": len(data)}


if __name__ == "__main__":
    chosen, trained, examples, device, file = sys.argv[1:]
    print(json.dumps(main(chosen, trained, int(examples), device, Path(file))))
