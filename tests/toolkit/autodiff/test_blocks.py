"""Kernels in blocks: nothing lost, nothing changed but the order of sums."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from toolkit.autodiff import run, trace
from toolkit.autodiff.blocks import Blocks, in_blocks, large_kernels
from toolkit.branch.branch import Branch
from toolkit.training.module import TrainingModule

INPUTS, OUTPUTS, BATCH = 1111, 500, 3  # three blocks, and 1111 is a multiple of nothing here


@given(inputs=st.integers(1, 3000), outputs=st.integers(1, 3000))
@settings(max_examples=200, deadline=None)
def test_every_row_is_in_exactly_one_block(inputs: int, outputs: int) -> None:
    places = Blocks("kernel", (inputs, outputs)).rows
    assert [row for start, size in places for row in range(start, start + size)] == [*range(inputs)]
    assert all(start % 32 == 0 and size > 0 for start, size in places)
    if len(places) > 1:
        assert max(size for _, size in places) * outputs <= 2 * 2**18 or len(places) == inputs // 32


def test_join_undoes_cut() -> None:
    blocks = Blocks("kernel", (INPUTS, OUTPUTS))
    kernel = np.arange(INPUTS * OUTPUTS, dtype=np.float32).reshape(INPUTS, OUTPUTS)
    cut = blocks.cut(kernel)
    assert len(cut) == 3
    (start, size), name = blocks.rows[1], blocks.names[1]
    np.testing.assert_array_equal(cut[name][0], kernel[start : start + size].T)
    np.testing.assert_array_equal(blocks.join(cut), kernel)


def model(*, tied: bool = False) -> keras.Model:
    """A large dense layer, whose input has a gradient too; tied, its kernel is read elsewhere."""
    x = keras.Input((7,))
    wide = layers.Dense(INPUTS, activation="relu", name="before")(x)
    large = layers.Dense(OUTPUTS, name="large")
    y = large(wide)
    if tied:
        y = layers.Lambda(lambda v: v + tf.reduce_sum(large.kernel))(y)
    return keras.Model(x, layers.Dense(2, name="after")(y))


def test_a_product_by_blocks_has_the_gradients_of_tensorflow() -> None:
    network = model()
    program = trace(network, batch=BATCH, training=True)
    kernels = large_kernels(program)
    assert kernels == {"large/kernel": Blocks("large/kernel", (INPUTS, OUTPUTS))}
    by_blocks = in_blocks(program, kernels.values())
    rng = np.random.default_rng(0)
    x, dy = (tf.constant(rng.normal(size=(BATCH, n)).astype("f")) for n in (7, 2))
    with tf.GradientTape() as tape:
        y = network(x)
    variables = {v.path: v for v in network.trainable_variables}
    expected = tape.gradient(y, variables, dy)
    kernel = kernels["large/kernel"]
    whole = {name: tf.constant(v) for name, v in variables.items()}
    parameters = {**whole, **kernel.cut(whole.pop(kernel.name))}
    ours = run(by_blocks, parameters, x)
    np.testing.assert_allclose(ours[by_blocks.y], y, rtol=1e-4, atol=1e-5)
    found = ours.gradients({by_blocks.y: dy}, tuple(by_blocks.parameters))
    found[kernel.name] = kernel.join(found)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_kernel_that_something_else_reads_stays_whole() -> None:
    assert large_kernels(trace(model(tied=True), batch=BATCH, training=True)) == {}


@pytest.mark.parametrize("shared", ["before", "large"])
def test_outside_a_kernel_has_its_own_name_and_shape(shared: str) -> None:
    branch = Branch("blocks", model(), (shared,))
    module = TrainingModule(branch, batch=BATCH, runtime="ai-edge-litert")
    state = module.tensors(module.state_shapes)
    np.testing.assert_array_equal(state["large/kernel"], branch.weights()["large/kernel"])
    assert not any(name.startswith("large/kernel/") for name in state)
    new = {name: value + 1.0 for name, value in module.tensors(branch.shared_names).items()}
    module.set(**new)
    for name, value in module.tensors(branch.shared_names).items():
        np.testing.assert_array_equal(value, new[name])
    module.accumulate(x=tf.ones([BATCH, 7]), y=tf.constant([0, 1, 1]))
    answer = module.apply()
    assert {n: tuple(v.shape) for n, v in answer.items()} == {
        name: module.state_shapes[name] for name in branch.shared_names
    }
    assert all(np.any(value) for value in answer.values())
