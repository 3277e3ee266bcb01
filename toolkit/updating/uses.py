"""What the tensors of a branch are worth: how strongly the loss depends on each of them.

    use(t) = 1/2N · Σ_n ‖∂l_n/∂t‖²

over calibration examples, one by one: the trace of Fisher's information of t, as TinyTrain uses it.
A step of gradient descent on t alone lowers the loss in proportion to it. The labels are drawn from
the branch's own answers, as Fisher's information wants them, so that none are needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from toolkit.autodiff.naming import named_variables
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.errors import ModelError

Images = npt.NDArray[np.generic]
_EXAMPLES = 48


def uses(branch: Branch, examples: Images) -> dict[str, float]:
    """Of each tensor that may train."""
    if not isinstance(branch.learning, Supervised) or branch.learning.loss != "cross_entropy":
        raise ModelError("--update auto is for branches that tell classes apart; give last:K.")
    names = set(branch.trainable_names)
    tensors = {n: v.value for n, v in named_variables(branch.model).items() if n in names}
    closes = branch.trace(batch=1, training=False)
    softmax = closes.logits() != closes.y
    rows = np.linspace(0, len(examples) - 1, min(len(examples), _EXAMPLES)).astype(int)
    rng = np.random.default_rng(0)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def squares(x: tf.Tensor, draw: tf.Tensor) -> dict[str, tf.Tensor]:
        """‖∂l/∂t‖² of one example."""
        with tf.GradientTape() as tape:
            answers = tf.reshape(branch.model(x, training=False), (-1, closes.y.shape[-1]))
            logs = tf.math.log(answers + 1e-7) if softmax else tf.nn.log_softmax(answers)
            below = tf.cumsum(tf.exp(logs), axis=-1) < draw  # inverse of the distribution function
            label = tf.reduce_sum(tf.cast(below, tf.int32), -1)
            label = tf.minimum(label, logs.shape[-1] - 1)
            loss = -tf.reduce_mean(tf.gather(logs, label, batch_dims=1))
        gradients = tape.gradient(loss, tensors, unconnected_gradients="zero")
        return {name: tf.reduce_sum(g * g) for name, g in gradients.items()}

    found = dict.fromkeys(tensors, 0.0)
    for row in rows:
        x = examples[row : row + 1].astype(np.float32) * np.float32(branch.input_scale)
        for name, square in squares(tf.constant(x), tf.constant(rng.random(), tf.float32)).items():
            found[name] += float(square) / (2 * len(rows))
    return found
