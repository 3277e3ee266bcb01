"""The layers of a branch that have several formulations."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow as tf

from toolkit.autodiff import run
from toolkit.autodiff.lower import Choice, Layer, Tuning, lower
from toolkit.branch.branch import Branch
from toolkit.branch.programs import programs_of


@dataclass(frozen=True)
class _Recording(Tuning):
    """Records the layers for which a choice is asked."""

    asked: dict[Layer, None] = field(default_factory=dict)  # in order

    def choose(self, layer: Layer) -> Choice:
        self.asked[layer] = None
        return super().choose(layer)


def layers_of(branch: Branch) -> list[Layer]:
    """Returns each distinct layer once, in the order of the branch.

    The branch is replayed and asks for a choice wherever there is one, so strides and paddings
    are reduced here exactly as in training.
    """
    recording = _Recording("any")
    program = lower(programs_of(branch, 1).training, recording, branch.trainable_names)
    with tf.Graph().as_default():
        stored = {
            name: tf.compat.v1.placeholder(value.dtype, value.shape)
            for name, value in program.parameters.items()
        }
        run(program, stored, tf.compat.v1.placeholder(program.x.dtype, program.x.shape))
    return list(recording.asked)
