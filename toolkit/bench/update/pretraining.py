"""The backbone that plans are compared on: MobileNetV2, trained on eight classes of CIFAR-10.

Cats and dogs are left out, so that a device meets classes that the backbone has never seen.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from firmware_sim.tasks.cifar10 import read_cifar10
from firmware_sim.tensor_spec import Array
from toolkit.bench.contest import Progress
from toolkit.branch.branch import Branch
from toolkit.branch.learning import Supervised
from toolkit.branch.optimizers import Adam
from toolkit.branch.schedules import CosineDecay

SIDE, WIDTH = 96, 0.35
CAT, DOG = 3, 5
OTHERS = (0, 1, 2, 4, 6, 7, 8, 9)
HEAD = "head"
_BATCH, _RATE, _FINE_RATE = 32, 2e-3, 1e-3
_SAVED_EVERY, _TESTED = 100, 2000  # steps, examples


def chosen_classes(images: Array, labels: Array, classes: tuple[int, ...]) -> tuple[Array, Array]:
    """The examples of these classes, numbered in this order."""
    numbers = {label: number for number, label in enumerate(classes)}
    kept = np.isin(labels, classes)
    return images[kept], np.array([numbers[int(n)] for n in labels[kept]], np.int32)


def network(classes: int) -> keras.Model:
    """CIFAR-10's images made three times as large, MobileNetV2 for 96×96 pixels, and a head."""
    base = keras.applications.MobileNetV2(
        (SIDE, SIDE, 3), alpha=WIDTH, include_top=False, weights=None, pooling="avg"
    )
    for layer in base.layers:  # 0.999 is for a million images: the averages would come too late
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.98
    x = keras.Input((32, 32, 3))
    features = base(keras.layers.UpSampling2D(SIDE // 32)(x))
    return keras.Model(x, keras.layers.Dense(classes, name=HEAD)(features))


def pretrain(data: Path, out: Path, steps: int, progress: Progress, seed: int = 0) -> float:
    """Trains the backbone in TensorFlow into the file `out`; returns its accuracy.

    If it is stopped, the next call goes on with what the file holds.
    """
    keras.utils.set_random_seed(seed)
    examples = read_cifar10(data)
    x, y = chosen_classes(examples.x_train, examples.y_train, OTHERS)
    model = keras.models.load_model(out) if out.exists() else _compiled(steps)
    for step in range(int(model.optimizer.iterations), steps):
        rng = np.random.default_rng((seed, step))
        rows = rng.choice(len(x), _BATCH, replace=False)
        images = x[rows].astype(np.float32) / 255
        flipped = rng.random(_BATCH) < 0.5
        images[flipped] = images[flipped, :, ::-1]
        loss = model.train_on_batch(images, y[rows])
        progress(f"pretraining, step {step + 1} of {steps}, loss {loss:.2f}")
        if (step + 1) % _SAVED_EVERY == 0 or step + 1 == steps:
            model.save(out)
    tested, wanted = chosen_classes(examples.x_test[:_TESTED], examples.y_test[:_TESTED], OTHERS)
    answers = model.predict(tested.astype(np.float32) / 255, batch_size=100, verbose=0)
    return float(np.mean(answers.argmax(1) == wanted))


def _compiled(steps: int) -> keras.Model:
    model = network(len(OTHERS))
    rate = keras.optimizers.schedules.CosineDecay(_RATE, steps)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), entropy)
    return model


def pets_branch(pretrained: Path, steps: int) -> Branch:
    """The pretrained backbone with a new head for cats and dogs, which is shared."""
    before = keras.models.load_model(pretrained)
    keras.utils.set_random_seed(0)
    model = network(2)
    for new, old in zip(model.layers[:-1], before.layers[:-1], strict=True):
        new.set_weights(old.get_weights())
    learning = Supervised(optimizer=Adam(CosineDecay(_FINE_RATE, steps)))
    return Branch("pets", model, (HEAD,), learning, input_dtype="uint8", input_scale=1 / 255)
