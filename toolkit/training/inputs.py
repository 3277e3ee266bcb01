"""What a training step takes."""

from __future__ import annotations

import tensorflow as tf

from toolkit.branch.branch import Branch
from toolkit.branch.learning import DoubleQ


def training_inputs(branch: Branch, batch: int) -> dict[str, tf.TensorSpec]:
    """What `train` takes: transitions for double Q-learning, otherwise examples.

    An autoencoder takes no `y`: what it is to answer is what it takes.
    """
    frames = tf.TensorSpec((batch, *branch.input_shape), branch.input_dtype)
    number = tf.TensorSpec((batch,), tf.float32)
    choice = tf.TensorSpec((batch,), tf.int32)
    if isinstance(branch.learning, DoubleQ):
        return {
            "obs": frames,
            "action": choice,
            "reward": number,
            "next_obs": frames,
            "done": number,
        }
    y = branch.target.y if branch.target is not None else None
    return {"x": frames} | ({"y": tf.TensorSpec((batch, *y.shape), y.dtype)} if y else {})
