"""The double-Q target and loss against a slow version in plain numpy."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.training.double_q import double_q_loss, double_q_target, first_maximum


@given(
    st.integers(1, 6).flatmap(
        lambda actions: st.lists(
            st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=actions, max_size=actions),
            min_size=1,
            max_size=5,
        )
    )
)
@settings(deadline=None, max_examples=50)
def test_first_maximum_is_argmax_also_of_equal_values(rows: list[list[float]]) -> None:
    q = np.array(rows, np.float32)
    wanted = np.eye(q.shape[1], dtype=np.float32)[q.argmax(1)]
    np.testing.assert_array_equal(first_maximum(tf.constant(q)), wanted)


def test_target_and_loss_are_the_papers() -> None:
    rng = np.random.default_rng(0)
    batch, actions, discount, delta = 32, 6, 0.99, 1.0
    online, delayed, q = (rng.normal(0, 2, (batch, actions)).astype(np.float32) for _ in range(3))
    reward = rng.normal(size=batch).astype(np.float32)
    done = rng.integers(0, 2, batch).astype(np.float32)
    action = rng.integers(0, actions, batch).astype(np.int32)

    target = np.zeros(batch, np.float32)
    losses = np.zeros(batch, np.float32)
    gradient = np.zeros((batch, actions), np.float32)
    for i in range(batch):
        best = max(range(actions), key=lambda a: online[i, a])
        target[i] = reward[i] if done[i] else reward[i] + discount * delayed[i, best]
        error = q[i, action[i]] - target[i]
        losses[i] = error**2 / 2 if abs(error) <= delta else delta * (abs(error) - delta / 2)
        gradient[i, action[i]] = np.clip(error, -delta, delta)

    given = (tf.constant(value) for value in (reward, done, online, delayed))
    r, end, ahead, later = given
    found = double_q_target(r, end, ahead, later, discount)
    np.testing.assert_allclose(found.numpy().ravel(), target, rtol=1e-5)
    mine = double_q_loss(tf.constant(q), tf.constant(action), found, delta)
    np.testing.assert_allclose(mine[0], losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine[1], gradient, rtol=1e-4, atol=1e-6)
