"""The layers: profiles ← broker ← firmware_sim ← toolkit, and TensorFlow only in the toolkit."""

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What of ours each package may import.
ALLOWED = {
    "profiles": {"profiles"},
    "broker": {"profiles", "broker"},
    "firmware_sim": {"profiles", "broker", "firmware_sim"},
}
OURS = {*ALLOWED, "toolkit", "tests"}
HEAVY = {"tensorflow", "keras"}


def modules(package: str) -> list[str]:
    """Every module of a package but __main__, which runs when it is imported."""
    found = pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
    return [package, *(m.name for m in found if not m.name.endswith("__main__"))]


def imported(code: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every import in a module, inside functions too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = package if node.level else (node.module or "")
            yield node.lineno, name.partition(".")[0]


def loaded_by(*names: str) -> set[str]:
    """Top-level packages that a fresh process has loaded after importing these modules."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code, *names]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files
        for line, name in imported(file.read_text(encoding="utf-8"), package)
        if name in HEAVY | (OURS - ALLOWED[package])
    ]
    assert wrong == []


def test_profiles_load_nothing_else_of_ours() -> None:
    assert loaded_by(*modules("profiles")) & (OURS | HEAVY | {"numpy"}) == {"profiles"}


def test_the_broker_and_the_device_never_load_tensorflow() -> None:
    names = [*modules("broker"), *modules("firmware_sim")]
    assert {"broker.protocol.slice", "firmware_sim.training.runtime", "firmware_sim.device"} <= set(
        names
    )
    loaded = loaded_by(*names)
    assert loaded & HEAVY == set()
    assert "toolkit" not in loaded
    # A runtime is loaded with a model and not before: the two cannot live in one process.
    assert loaded & {"ai_edge_litert", "tflite_runtime"} == set()


def test_a_device_needs_little() -> None:
    """numpy, a runtime, paho-mqtt and safetensors; no ONNX, no asyncio broker, no drawing."""
    loaded = loaded_by("firmware_sim.device.__main__")
    assert loaded & {"onnx", "amqtt", "cryptography", "matplotlib", "rich", "typer"} == set()


def test_contestants_of_the_step_benchmark_load_nothing_of_a_fleet() -> None:
    """They run in environments that have TensorFlow or a runtime, and no MQTT or safetensors."""
    names = ("toolkit.bench.flex", "toolkit.bench.tensorflow_step", "firmware_sim.measure")
    assert loaded_by(*names) & {"safetensors", "paho", "onnx"} == set()


def test_the_command_line_starts_without_tensorflow() -> None:
    assert (
        loaded_by("toolkit.commands.cli") & (HEAVY | {"onnx", "sklearn", "ai_edge_litert"}) == set()
    )


def test_the_check_sees_relative_imports_and_those_inside_functions() -> None:
    code = "def f():\n  import toolkit.zoo as z\n  from ..slice import x\n  from keras import y\n"
    assert list(imported(code, "broker")) == [(2, "toolkit"), (3, "broker"), (4, "keras")]
