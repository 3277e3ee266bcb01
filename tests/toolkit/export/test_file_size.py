"""The contract: `model.tflite` is at most 1.15 times as large as the branch's weights.

Asked of the branch that a weak device trains, at the batch of every shipped profile and with the
tuning that ships: the larger branches are far below, and for the small ones see test_parity.py.
"""

from firmware_sim.bundle.reader import Bundle
from toolkit import zoo
from toolkit.branch.branch import Branch
from toolkit.conversion.convert import convert_module
from toolkit.training.module import TrainingModule


def weights_bytes(branch: Branch) -> int:
    return sum(value.nbytes for value in branch.weights().values())


def test_atari_lightweight_is_little_more_than_its_weights(atari_bundle: Bundle) -> None:
    """Exported for ai-edge-litert."""
    weights = weights_bytes(zoo.build("atari", "lightweight"))
    assert (atari_bundle.manifest.runtime, atari_bundle.manifest.batch_size) == (
        "ai-edge-litert",
        32,
    )
    assert weights < atari_bundle.model.stat().st_size <= 1.15 * weights


def test_it_is_a_little_more_for_tflite_runtime() -> None:
    """Its faster formulations have more operations."""
    branch = zoo.build("atari", "lightweight")
    model = convert_module(TrainingModule(branch, batch=32, runtime="tflite-runtime"))
    assert weights_bytes(branch) < len(model) <= 1.16 * weights_bytes(branch)
