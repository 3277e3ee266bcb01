"""Parameters and operations of the zoo's branches; the paper's where it states them."""

import pytest

from firmware_sim.playing.environments import make_environment
from toolkit import zoo
from toolkit.branch.branch import sharing_everything
from toolkit.branch.counting import Counts, count, training_operations
from toolkit.errors import ModelError

COUNTS = {
    ("atari", "lightweight", "share-first"): Counts(71_214, 6_219_158, 41_056),
    ("atari", "complex", "share-first"): Counts(1_687_206, 9_389_318, 41_056),
    ("atari", "lightweight", "cascading"): Counts(71_214, 6_219_158, 71_214),
    ("atari", "complex", "cascading"): Counts(1_717_364, 9_641_506, 71_214),
    ("cartpole", "lightweight", "share-first"): Counts(858, 930, 320),
    ("cartpole", "complex", "share-first"): Counts(8_898, 9_090, 320),
    ("cartpole", "lightweight", "cascading"): Counts(858, 930, 858),
    ("cartpole", "complex", "cascading"): Counts(9_436, 9_638, 858),
    ("cifar10", "lightweight", "share-first"): Counts(25_834, 9_317_972, 10_144),
    ("cifar10", "complex", "share-first"): Counts(1_250_858, 20_915_732, 10_144),
    ("cifar10", "lightweight", "cascading"): Counts(25_834, 9_317_972, 25_834),
    ("cifar10", "complex", "cascading"): Counts(1_266_548, 20_931_432, 25_834),
    ("digits", "lightweight", "share-first"): Counts(3_930, 96_820, 2_480),
    ("digits", "complex", "share-first"): Counts(45_402, 175_828, 2_480),
    ("digits", "lightweight", "cascading"): Counts(3_930, 96_820, 3_930),
    ("digits", "complex", "cascading"): Counts(46_852, 177_288, 3_930),
    ("minatar", "lightweight", "share-first"): Counts(12_970, 51_302, 592),
    ("minatar", "complex", "share-first"): Counts(132_566, 171_014, 592),
    ("minatar", "lightweight", "cascading"): Counts(12_970, 51_302, 12_970),
    ("minatar", "complex", "cascading"): Counts(144_944, 183_410, 12_970),
}
# A second loss has no parameters and takes no part in inference.
COUNTS |= {
    (task, branch, "two-loss"): counts
    for (task, branch, topology), counts in COUNTS.items()
    if topology == "cascading"
}


def test_every_branch_of_the_zoo_is_counted_here() -> None:
    assert sorted(COUNTS) == sorted(zoo.names())


@pytest.mark.parametrize(("name", "counts"), COUNTS.items(), ids=lambda key: "-".join(key)
                         if isinstance(key, tuple) else "")  # fmt: skip
def test_counts(name: tuple[str, str, str], counts: Counts) -> None:
    assert count(zoo.build(*name)) == counts


def test_a_cascade_adds_the_whole_lightweight_output_layer() -> None:
    complex_, cascade = (
        COUNTS["cifar10", "complex", topology] for topology in ("share-first", "cascading")
    )
    assert cascade.parameters - complex_.parameters == 15_690 == 7 * 7 * 32 * 10 + 10
    # Its products, its biases, and the sum of both outputs.
    assert cascade.operations - complex_.operations == 7 * 7 * 32 * 10 + 10 + 10


def test_operations_of_the_lightweight_digits_by_hand() -> None:
    first = 8 * 8 * 16 * (3 * 3 * 1 + 2)  # products, bias and ReLU
    second = 6 * 6 * 16 * (3 * 3 * 16 + 2)
    output = 10 * (3 * 3 * 16 + 1)
    softmax = 10
    assert first + second + output + softmax == 96_820


def test_training_counts_the_products_that_a_step_needs() -> None:
    first, second, output = 8 * 8 * 16 * 9, 6 * 6 * 16 * 144, 10 * 144
    # Forward and both gradients, but no gradient with respect to the image.
    wanted = 2 * first + 3 * second + 3 * output
    assert training_operations(zoo.build("digits", "lightweight")) == wanted


def test_double_q_learning_adds_two_forward_passes() -> None:
    first, second, third = 20 * 20 * 32 * 256, 9 * 9 * 64 * 512, 7 * 7 * 8 * 576
    dense = 392 * 64 + 64 * 6
    wanted = 4 * first + 5 * (second + third + dense)
    assert training_operations(zoo.build("atari", "lightweight")) == wanted


@pytest.mark.parametrize(("game", "planes"), [("asterix", 4), ("seaquest", 10), ("freeway", 7)])
def test_minatar_branches_see_the_planes_of_their_game(game: str, planes: int) -> None:
    branch = zoo.build("minatar", "complex", game=game)
    assert branch.input_shape == make_environment(f"minatar/{game}", 1).observation.shape
    assert count(branch).shared_parameters == 9 * planes * 16 + 16


def test_an_unknown_minatar_game_is_refused() -> None:
    games = "asterix, breakout, freeway, seaquest, space_invaders"
    with pytest.raises(ModelError, match=f"^there is no MinAtar game 'pong'; there are {games}"):
        zoo.build("minatar", "complex", game="pong")


@pytest.mark.parametrize("task", ["atari", "cartpole", "minatar"])
def test_a_branch_can_share_everything(task: str) -> None:
    branch = zoo.build(task, "lightweight")
    everything = sharing_everything(branch)
    assert everything.local_names == ()
    assert set(everything.shared_names) == set(branch.trainable_names)
    assert everything.model is branch.model and len(branch.local_names) > 0
