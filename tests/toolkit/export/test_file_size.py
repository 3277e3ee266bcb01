"""The contract: `model.tflite` is at most 1.15 times as large as the branch's weights.

Asked of the branch that a weak device trains, at the batch of every shipped profile and with the
tuning that ships: the larger branches are far below, and for the small ones see test_parity.py.
"""

import pytest

from toolkit import zoo
from toolkit.conversion.convert import convert_module
from toolkit.training.module import TrainingModule

# tflite-runtime's faster formulations have more operations.
LIMITS = {"ai-edge-litert": 1.15, "tflite-runtime": 1.16}


@pytest.mark.parametrize("runtime", LIMITS)
def test_atari_lightweight_is_little_more_than_its_weights(runtime: str) -> None:
    branch = zoo.build("atari", "lightweight")
    model = convert_module(TrainingModule(branch, batch=32, runtime=runtime))
    weights = sum(value.nbytes for value in branch.weights().values())
    assert weights < len(model) <= LIMITS[runtime] * weights
