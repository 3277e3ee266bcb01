"""Trains a model on random numbers and reports its speed and its peak memory.

    python -m firmware_sim.measure MODEL.tflite [--runtime NAME] [--threads N] [--steps N]
        [--batch N] [--device] [--prefix PREFIX.tflite] [--predict PREDICT.tflite]

Run it in a process of its own: the peak is that of the whole process, as the kernel counts it.
With --device the process does all that a device does in a round: it loads the agent, plays a game
if the model learns from one, keeps a store of examples and answers beside training (with
--predict), evaluates, writes and reads a checkpoint, and checks the signature and
the plausibility of a θ_shared (`check_seconds`). The report is one line of JSON.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firmware_sim.probe import peak_memory_bytes, random_input
from firmware_sim.tensor_spec import TensorSpec
from firmware_sim.training.prefixed import load_model
from firmware_sim.training.runtime import Model, runtime_version
from firmware_sim.training.steps import take_batch

if TYPE_CHECKING:
    from firmware_sim.playing.environments.atari import AtariGame

_CACHE_BYTES = 2**20  # of examples, more than the store keeps in memory
_KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"  # of RFC 8032, 7.1


def measure(
    model: Path,
    *,
    runtime: str | None,
    threads: int,
    steps: int,
    batch: int | None = None,
    device: bool = False,
    prefix: Path | None = None,
    predict: Path | None = None,
) -> dict[str, object]:
    """Runs one inference, a warm-up step, then `steps` timed ones on the same batch.

    `batch` is by default the number of samples that the model takes at once.
    """
    if device:
        # What the agent loads counts too.
        import firmware_sim.device.assembly  # noqa: F401
        from firmware_sim.training.limits import return_freed_memory

        return_freed_memory()
    imported = peak_memory_bytes()
    loaded = load_model(model, prefix, runtime=runtime, threads=threads)
    game = _game(loaded) if device else None
    if device:  # a device that was killed starts from its checkpoint
        loaded.use_random_stream(1)
        _checkpoint(loaded, restore=True)
    stream = _Stream(loaded, predict, prefix) if predict else None
    x = random_input(np.random.default_rng(0), loaded.inputs("infer")["x"])
    answer = loaded.call("infer", x=x)["output"]
    rng = np.random.default_rng(0)
    takes = loaded.inputs("accumulate")
    size = batch or next(iter(takes.values())).shape[0]
    samples = {
        name: random_input(rng, TensorSpec((size, *spec.shape[1:]), spec.dtype))
        for name, spec in takes.items()
    }
    losses = [take_batch(loaded, "train", **samples)]
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = take_batch(loaded, "train", **samples)
        times.append(time.perf_counter() - begin)
        losses.append(loss)
    if device:
        if "sync_target" in loaded.signatures:
            loaded.call("sync_target")
        _evaluate(loaded)
        _checkpoint(loaded)
        if stream is not None:
            stream.renew(loaded)
    checked = _check_shared(loaded) if device else None
    if game is not None:
        game.close()
    if stream is not None:
        stream.close()
    return {
        "runtime": loaded.runtime,
        "runtime_version": runtime_version(loaded.runtime),
        "threads": threads,
        "answer": answer.ravel().tolist(),
        "step_seconds": times,
        "check_seconds": checked,
        "losses": losses,
        "start_bytes": imported,
        "peak_bytes": peak_memory_bytes(),
    }


class _Stream:
    """A store as large as any with its caches filled, and answers beside training."""

    def __init__(self, model: Model, predict: Path, prefix: Path | None) -> None:
        from firmware_sim.bundle.target import Target
        from firmware_sim.predicting.predictor import Predictor
        from firmware_sim.store.size import MOST_SLOTS, Size
        from firmware_sim.store.spec import ExampleSpec
        from firmware_sim.store.store import Store
        from firmware_sim.tasks import open_stream  # noqa: F401

        specs = {name: spec.of_one for name, spec in model.inputs("accumulate").items()}
        spec = ExampleSpec(specs["x"], specs.get("y"))
        rng = np.random.default_rng(0)
        self._predictor = Predictor(
            predict, Target("numbers"), prefix=prefix, runtime=model.runtime
        )
        self._folder = tempfile.TemporaryDirectory()
        self._store = Store(Path(self._folder.name), spec, Size(MOST_SLOTS, 256, 2**20))
        for _ in range(max(2, min(64, _CACHE_BYTES // spec.size))):
            row = {name: random_input(rng, one) for name, one in specs.items()}
            self._store.add(row["x"], row.get("y"))
        self.renew(model)
        self._predictor.predict(random_input(rng, specs["x"]))

    def renew(self, model: Model) -> None:
        self._predictor.renew(model.call("get_state"))

    def close(self) -> None:
        self._store.close()
        self._folder.cleanup()


def _checkpoint(model: Model, *, restore: bool = False) -> None:
    """Writes a checkpoint with an update in it; with `restore`, continues from it."""
    from firmware_sim.training.checkpoint import Checkpoint, Checkpoints

    shared = model.call("get_shared")
    update = b"".join(value.tobytes() for value in shared.values())
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), device="measured", bundle="measured")
        checkpoints.save(
            Checkpoint(
                run="measured",
                round=0,
                steps_done=0,
                learner=model.call("get_state"),
                base=shared,
                outbox=update,
            )
        )
        if restore and (left := checkpoints.load()) is not None:
            model.call("set_state", **left.learner)
            model.call("set_shared", **left.base)


def _check_shared(model: Model) -> float:
    """Returns the seconds that it takes to believe a θ_shared; a wrong signature takes as long."""
    from broker.errors import Unsigned
    from broker.protocol.messages import AggregatorState, Shared
    from broker.protocol.signatures import FIELD, check_signature
    from broker.protocol.wire import Envelope
    from firmware_sim.device.plausibility import Plausibility, Scale
    from firmware_sim.training.checkpoint import Trusted

    shared = Shared(run="r", round=1, fingerprint="", tensors=model.call("get_shared"))
    state = AggregatorState(status="online", run="r", round=1)
    rules = Plausibility(Scale.of(shared.tensors), Trusted())
    rules.adopted(shared, shared.tensors, state)
    text = base64.b64encode(bytes(range(64, 127)) + b"\0").decode()
    envelope = Envelope(Shared.KIND, {FIELD: text, "run": "r", "round": 1}, shared.tensors)
    begin = time.perf_counter()
    with contextlib.suppress(Unsigned):
        check_signature(envelope, "stemshare/v1/measured/shared", bytes.fromhex(_KEY))
    rules.check(shared, shared.tensors, state)
    return time.perf_counter() - begin


def _evaluate(model: Model) -> None:
    if "evaluate" in model.signatures:
        rng = np.random.default_rng(0)
        inputs = model.inputs("evaluate")
        model.call("evaluate", **{name: random_input(rng, s) for name, s in inputs.items()})
    elif (game := _game(model)) is not None:  # a second game, beside that of training
        model.call("infer", x=game.step(0).obs[None])
        game.close()


def _game(model: Model) -> AtariGame | None:
    """Returns a started Atari game, if the model takes its frames and ale-py is installed."""
    from firmware_sim.errors import TaskError
    from firmware_sim.playing.environments.atari import OBSERVATION, AtariGame

    x = model.inputs("infer")["x"]
    if (x.shape[1:], x.dtype) != (OBSERVATION.shape, OBSERVATION.dtype):
        return None
    try:
        game = AtariGame("breakout", 25)
    except TaskError:
        return None
    game.reset(0)
    game.step(0)
    return game


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runtime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--prefix", type=Path)
    parser.add_argument("--predict", type=Path)
    args = parser.parse_args()
    report = measure(
        args.model,
        runtime=args.runtime,
        threads=args.threads,
        steps=args.steps,
        batch=args.batch,
        device=args.device,
        prefix=args.prefix,
        predict=args.predict,
    )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
