"""TensorFlow's own training step, compiled by `tf.function`.

python -m toolkit.bench.step.tensorflow_step TASK BRANCH TOPOLOGY BATCH STEPS THREADS
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf

from toolkit import zoo
from toolkit.bench.step.reference import Reference
from toolkit.bench.step.timing import Batch, timed_steps
from toolkit.training.inputs import training_inputs


def run(task: str, branch: str, topology: str, batch: int, steps: int) -> dict[str, object]:
    reference = Reference(zoo.build(task, branch, topology))
    train = tf.function(reference.train, autograph=False)
    specs = {
        name: (tuple(spec.shape), spec.dtype.as_numpy_dtype)
        for name, spec in training_inputs(reference.branch, batch).items()
    }

    def step(batch: Batch) -> float:
        return float(train(**{name: tf.constant(value) for name, value in batch.items()}))

    return timed_steps(step, specs, steps)


if __name__ == "__main__":
    task_name, branch_name, topology_name, batch_size, steps, threads = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print(json.dumps(run(task_name, branch_name, topology_name, int(batch_size), int(steps))))
