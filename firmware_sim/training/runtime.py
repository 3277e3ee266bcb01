"""Runs models in either TFLite runtime: tflite-runtime or its successor, ai-edge-litert."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from firmware_sim.bundle.reader import Bundle
from firmware_sim.errors import RuntimeUnavailable, WrongInput
from firmware_sim.tensor_spec import Array, TensorSpec
from firmware_sim.training.random_streams import draws_random_numbers, in_stream

# In order of preference: the maintained one first.
RUNTIMES = {
    "ai-edge-litert": "ai_edge_litert.interpreter",
    "tflite-runtime": "tflite_runtime.interpreter",
}


def installed_runtimes() -> tuple[str, ...]:
    """Returns the names of the installed runtimes, the preferred one first."""
    return tuple(
        name
        for name, module in RUNTIMES.items()
        if importlib.util.find_spec(module.partition(".")[0]) is not None
    )


def choose_runtime(wanted: str | None = None) -> str:
    """Returns the wanted runtime, or the preferred one; raises if it is not installed."""
    installed = installed_runtimes()
    if wanted is None:
        if not installed:
            raise RuntimeUnavailable(
                f"no TFLite runtime is installed; install {' or '.join(RUNTIMES)}."
            )
        return installed[0]
    if wanted not in installed:
        raise RuntimeUnavailable(
            f"the runtime {wanted} is not installed; "
            f"here there is {', '.join(installed) or 'none'}."
        )
    return wanted


def runtime_for(bundle: Bundle, wanted: str | None = None) -> str:
    """Returns the wanted runtime, or by default the one that the bundle was made for.

    If that one is not installed, it is the preferred one that is.
    """
    made_for = bundle.manifest.profile.runtime
    return choose_runtime(wanted or (made_for if made_for in installed_runtimes() else None))


def runtime_version(name: str) -> str:
    return importlib.metadata.version(name)


class Model:
    """A loaded TFLite model; its variables live as long as this object."""

    def __init__(self, path: Path, *, runtime: str | None = None, threads: int = 1) -> None:
        self.runtime = choose_runtime(runtime)
        self._path = path
        self._threads = threads
        self._load(model_path=str(path))

    def use_random_stream(self, number: int) -> None:
        """From now on dropout draws the numbers of this stream, from its beginning.

        Variables keep their values. A model without random operations stays as it is.
        """
        if draws_random_numbers(self._path):
            state = self.call("get_state")
            self._load(model_content=in_stream(self._path.read_bytes(), number))
            self.call("set_state", **state)

    def _load(self, **source: Any) -> None:
        self._runners: dict[str, Any] = {}
        self._inputs: dict[str, dict[str, TensorSpec]] = {}
        self._interpreter: Any = None  # first: there is memory for one only
        module = importlib.import_module(RUNTIMES[self.runtime])
        self._interpreter = module.Interpreter(num_threads=self._threads, **source)

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        return tuple(self._interpreter.get_signature_list())

    def inputs(self, signature: str) -> Mapping[str, TensorSpec]:
        """Returns the inputs of a signature, by name."""
        if signature not in self._inputs:
            details = self._runner(signature).get_input_details()
            self._inputs[signature] = {
                name: TensorSpec(tuple(int(n) for n in d["shape"]), np.dtype(d["dtype"]))
                for name, d in details.items()
            }
        return self._inputs[signature]

    def call(self, signature: str, /, **inputs: Array) -> dict[str, Array]:
        """Runs a signature; checks shapes and types first, since runtimes resize silently."""
        return self._checked_call(signature, self.inputs(signature), inputs)

    def _checked_call(
        self, signature: str, specs: Mapping[str, TensorSpec], inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        if inputs.keys() != specs.keys():
            missing = [name for name in specs if name not in inputs]
            unknown = [name for name in inputs if name not in specs]
            raise WrongInput(
                f"{signature} takes {', '.join(specs) or 'nothing'}; "
                f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}."
            )
        for name, spec in specs.items():
            value = inputs[name]
            if value.shape != spec.shape or value.dtype != spec.dtype:
                raise WrongInput(
                    f"{signature} takes {name} as {spec.dtype}{list(spec.shape)}, "
                    f"not {value.dtype}{list(value.shape)}."
                )
        answer: dict[str, Array] = self._runner(signature)(**inputs)
        return answer

    def _runner(self, signature: str) -> Any:
        if signature not in self._runners:
            if signature not in self.signatures:
                raise WrongInput(
                    f"the model has no signature {signature!r}; "
                    f"it has {', '.join(self.signatures)}."
                )
            self._runners[signature] = self._interpreter.get_signature_runner(signature)
        return self._runners[signature]
