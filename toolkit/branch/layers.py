"""Keras layers of our own."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable("stemshare")
class BranchDropout(keras.layers.Layer):  # type: ignore[misc]
    """Drops the whole branch, all or nothing, for each example with probability `rate`.

    It sits at the end of the complex branch of a cascade, so that the lightweight branch beside
    it does not come to rely on it. What is kept is scaled by 1 / (1 - rate).
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"rate is {rate}; it must be at least 0 and below 1.")
        self.rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.rate == 0.0:
            return inputs
        shape = keras.ops.shape(inputs)
        one_draw_each = (shape[0],) + (1,) * (len(shape) - 1)
        return keras.random.dropout(
            inputs, self.rate, noise_shape=one_draw_each, seed=self.seed_generator
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
