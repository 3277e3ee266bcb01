"""The two topologies of the paper, for any pair of a lightweight and a complex network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import layers

from toolkit.branch.branch import Branch
from toolkit.branch.layers import BranchDropout
from toolkit.branch.learning import Supervised

Part = Callable[[keras.KerasTensor], keras.KerasTensor]
LIGHT_OUTPUT = "light_output"


@dataclass(frozen=True)
class Pair:
    """A stem, what follows it in either branch, and the number of classes of both.

    share-first: stem → head of the branch.
    cascading: the complex branch contains the whole lightweight one; their outputs are added
    before the softmax, behind a branch dropout on the complex side.
    """

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    stem_layers: tuple[str, ...]
    stem: Part
    light_features: Part
    complex_features: Part
    learning: Supervised
    input_scale: float

    def branches(self) -> dict[tuple[str, str], Callable[[], Branch]]:
        """How to build each branch, by topology and branch."""
        cascade = (*self.stem_layers, LIGHT_OUTPUT)
        return {
            ("share-first", "lightweight"): lambda: self._lightweight(self.stem_layers),
            ("share-first", "complex"): self._complex,
            ("cascading", "lightweight"): lambda: self._lightweight(cascade),
            ("cascading", "complex"): lambda: self._cascade(cascade),
        }

    def _lightweight(self, shared: tuple[str, ...]) -> Branch:
        x = keras.Input(self.input_shape)
        return self._branch("lightweight", x, self._light_logits(self.stem(x)), shared)

    def _complex(self) -> Branch:
        x = keras.Input(self.input_shape)
        logits = layers.Dense(self.classes, name="output")(self.complex_features(self.stem(x)))
        return self._branch("complex", x, logits, self.stem_layers)

    def _cascade(self, shared: tuple[str, ...]) -> Branch:
        x = keras.Input(self.input_shape)
        stem = self.stem(x)
        features = BranchDropout(0.5, name="branch_dropout")(self.complex_features(stem))
        refinement = layers.Dense(self.classes, name="output")(features)
        logits = layers.Add(name="sum")([self._light_logits(stem), refinement])
        return self._branch("complex-cascading", x, logits, shared)

    def _light_logits(self, stem: keras.KerasTensor) -> keras.KerasTensor:
        return layers.Dense(self.classes, name=LIGHT_OUTPUT)(self.light_features(stem))

    def _branch(
        self, kind: str, x: keras.KerasTensor, logits: keras.KerasTensor, shared: tuple[str, ...]
    ) -> Branch:
        y = layers.Softmax(name="softmax")(logits)
        return Branch(
            name=f"{self.name}-{kind}",
            model=keras.Model(x, y, name=f"{self.name}_{kind.replace('-', '_')}"),
            shared_layers=shared,
            learning=self.learning,
            input_dtype="uint8",
            input_scale=self.input_scale,
        )
