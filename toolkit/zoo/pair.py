"""The topologies of a pair of a lightweight and a complex network.

share-first   both have the stem in common, which is shared, and a head of their own
cascading     the complex branch contains the whole lightweight one, which is shared; their outputs
              are added before the softmax, and the complex side has a branch dropout (the paper's)
two-loss      the same without branch dropout, and with a loss at both outputs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import keras
from keras import layers

from toolkit.branch.branch import Branch, sharing_everything
from toolkit.branch.cascade import cascade
from toolkit.branch.learning import Supervised

Part = Callable[[keras.KerasTensor], keras.KerasTensor]
Build = Callable[[], Branch]
BRANCH_DROPOUT = 0.5  # the paper's


def topologies(lightweight: Build, complex_: Build) -> dict[tuple[str, str], Build]:
    """How to build each branch, by topology and branch, from a pair that shares its stem."""

    def whole() -> Branch:
        return sharing_everything(lightweight())

    def cascaded(topology: str, branch_dropout: float | None) -> Branch:
        strong = complex_()
        joined = cascade(whole(), strong, branch_dropout=branch_dropout)
        return replace(joined, name=f"{strong.name}-{topology}")

    return {
        ("share-first", "lightweight"): lightweight,
        ("share-first", "complex"): complex_,
        ("cascading", "lightweight"): whole,
        ("cascading", "complex"): lambda: cascaded("cascading", BRANCH_DROPOUT),
        ("two-loss", "lightweight"): whole,
        ("two-loss", "complex"): lambda: cascaded("two-loss", None),
    }


@dataclass(frozen=True)
class Pair:
    """A classifier's stem, what follows it in either branch, and the number of classes."""

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    stem_layers: tuple[str, ...]
    stem: Part
    light_features: Part
    complex_features: Part
    learning: Supervised
    input_scale: float

    def branches(self) -> dict[tuple[str, str], Build]:
        """How to build each branch, by topology and branch."""
        return topologies(self._lightweight, self._complex)

    def _lightweight(self) -> Branch:
        return self._branch("lightweight", self.light_features, "light_output")

    def _complex(self) -> Branch:
        return self._branch("complex", self.complex_features, "output")

    def _branch(self, kind: str, features: Part, output: str) -> Branch:
        x = keras.Input(self.input_shape)
        logits = layers.Dense(self.classes, name=output)(features(self.stem(x)))
        y = layers.Softmax(name="softmax")(logits)
        return Branch(
            name=f"{self.name}-{kind}",
            model=keras.Model(x, y, name=f"{self.name}_{kind}"),
            shared_layers=self.stem_layers,
            learning=self.learning,
            input_dtype="uint8",
            input_scale=self.input_scale,
        )
