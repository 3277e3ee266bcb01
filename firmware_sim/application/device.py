"""A device inside an application: it predicts and observes, and learns behind that.

    with Device("build/weak", state="state/pi-1") as device:
        for window in sensor:
            print(device.predict(window).label)
            device.observe(window, label)

It is the same agent as `python -m firmware_sim.device --task stream`, in a thread.
"""

from __future__ import annotations

import contextlib
import io
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.log import Log
from firmware_sim.bundle.reader import Bundle
from firmware_sim.device.assembly import assembled
from firmware_sim.device.make_task import STREAM
from firmware_sim.device.options import arguments, read_options
from firmware_sim.errors import DeviceClosed, Stopped, WrongInput
from firmware_sim.predicting.prediction import Prediction
from firmware_sim.probe import peak_memory_bytes
from firmware_sim.training.limits import Caps
from profiles.errors import StemshareError
from profiles.text import printable


class Device:
    """Predicts with the newest weights, keeps what it observes, and trains on it meanwhile.

    Every method may be called from any thread.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        state: str | Path,
        broker: str | None = None,
        fleet: str | None = None,
        id: str | None = None,
        log: Log | None = None,
        **options: Any,
    ) -> None:
        """`bundle` is a folder from `toolkit export`, or a pack; without a fleet it learns alone.

        `options` are those of `python -m firmware_sim.device`, with underscores: `steps=50`.
        """
        given: dict[str, Any] = {"broker": broker, "fleet": fleet, "id": id, **options}
        self._log = log or Log()
        self._error: BaseException | None = None
        self._stack = ExitStack()
        self._closed = False
        args = _options(Path(bundle), Path(state), given, self._log)
        with ExitStack() as unless_all_is_well:
            unless_all_is_well.callback(self._stack.close)
            if packs := getattr(args, "packs", None):
                self._stack.callback(packs.close)
            self._assembly = self._stack.enter_context(
                assembled(args, self._log, limit=_beside_application)
            )
            unless_all_is_well.pop_all()
        assert self._assembly.stream is not None
        self._stream = self._assembly.stream
        self._thread = threading.Thread(target=self._train, name="training", daemon=True)
        self._thread.start()

    def predict(self, x: Any) -> Prediction:
        """Returns the answer to one example; never waits for a training step."""
        self._check_open()
        return self._stream.predictor.predict(self._stream.store.spec.as_x(x))

    def observe(self, x: Any, y: Any = None, *, key: str = "") -> str:
        """Stores an example and returns its key; when this returns, a kill does not cost it.

        An example with a key that is there already is not stored again.
        """
        self._check_open()
        return self._stream.intake.observe(x, y, key=key)

    def label(self, key: str, y: Any) -> bool:
        """Gives an example its target; returns False if it is not there any more."""
        self._check_open()
        return self._stream.intake.label(key, y)

    @property
    def training(self) -> bool:
        """Whether it still trains; not after an error, nor when its fleet has finished."""
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """What ended the training, if anything did; `close` raises it."""
        return self._error

    @property
    def scores(self) -> dict[str, float]:
        """The newest scores, on held-out examples and of test-then-train."""
        return dict(self._stream.task.scores)

    def close(self) -> None:
        """Stops training after the step that it is in, and keeps everything; raises `error`."""
        if self._closed:
            return
        self._closed = True
        self._assembly.rounds.stop()
        self._thread.join()
        self._stack.close()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(BaseException):  # that of the application counts; ours is logged
            self.close()

    def _train(self) -> None:
        try:
            self._assembly.train()
        except Stopped as stopped:
            if type(stopped) is not Stopped:  # the memory cap
                self._fail(stopped)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        said = str(error) if isinstance(error, StemshareError) else repr(error)
        self._log.event("training_failed", reason=printable(said, 300))

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceClosed("the device is closed.")


def _options(bundle: Path, state: Path, given: dict[str, Any], log: Log) -> Any:
    """Returns the options of the program that this device is."""
    argv = ["--pack" if bundle.is_file() else "--bundle", str(bundle), "--state", str(state)]
    argv += ["--task", STREAM]
    if not bundle.is_file() and given["fleet"] is None:
        argv.append("--isolated")
    for name, value in given.items():
        if value is None or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        argv += [flag] if value is True else [flag, str(value)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return read_options(arguments(), argv, log)
    except SystemExit:
        why = said.getvalue().strip().rpartition("error: ")[2]
        raise WrongInput(f"the options of a device are not understood: {why[:300]}.") from None


def _beside_application(bundle: Bundle, caps: Caps) -> Caps:
    """The memory that an application had before it made the device is its own."""
    measured = bundle.manifest.measured
    own = peak_memory_bytes() - (measured.start_bytes if measured else 0)
    return replace(caps, memory_bytes=caps.memory_bytes + max(0, own))
