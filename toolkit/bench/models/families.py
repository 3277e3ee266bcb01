"""The networks: random weights, 96×96 pixels, a new head of ten classes."""

from __future__ import annotations

import keras

from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import SGD

FAMILIES = (
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large"),
    *("EfficientNetB0", "EfficientNetV2B0", "ResNet50V2", "DenseNet121"),
    *("NASNetMobile", "ConvNeXtTiny", "Xception"),
)
SIZE, CLASSES = 96, 10
HEAD = "head"


def build(family: str, *, head_only: bool) -> Branch:
    keras.utils.set_random_seed(0)
    backbone = getattr(keras.applications, family)(
        input_shape=(SIZE, SIZE, 3), weights=None, include_top=False, pooling="avg"
    )
    backbone.trainable = not head_only
    logits = keras.layers.Dense(CLASSES, name=HEAD)(backbone.output)
    model = keras.Model(backbone.input, logits)
    return Branch(family, model, (HEAD,), Supervised(optimizer=SGD(0.01)))
