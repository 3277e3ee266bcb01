"""A device that changes its branch keeps what fits of its own layers."""

import numpy as np

from firmware_sim.updating.inheriting import inherited


def test_names_and_shapes_and_types_decide() -> None:
    old = {
        "stem/kernel": np.ones((2, 3), np.float32),
        "head/kernel": np.ones((3, 4), np.float32),
        "gone/bias": np.ones(4, np.float32),
        "optimizer/step": np.array(7, np.int32),
        "optimizer/m/head/kernel": np.ones((3, 4), np.float32),
    }
    new = {
        "stem/kernel": np.zeros((2, 3), np.float32),
        "head/kernel": np.zeros((3, 5), np.float32),
        "new/bias": np.zeros(4, np.float32),
        "optimizer/step": np.array(0, np.int32),
        "optimizer/m/head/kernel": np.zeros((3, 5), np.float32),
    }
    assert inherited(new, old).keys() == {"stem/kernel"}, "half an optimiser is none"
    same = {**old, "new/bias": np.zeros(4, np.float32)}
    assert inherited(same, old).keys() == old.keys()
    assert int(inherited(same, old)["optimizer/step"]) == 7
