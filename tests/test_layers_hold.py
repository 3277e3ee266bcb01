"""The layers: profiles ← broker ← firmware_sim ← toolkit, and TensorFlow only in the toolkit.

Within broker and toolkit, the sub-packages import each other without cycles.
"""

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What of ours each package may import. A device speaks the protocol over the transport, and takes
# single modules besides; merging and the aggregator are not its business.
ALLOWED = {
    "profiles": {"profiles"},
    "broker": {"profiles", "broker"},
    "firmware_sim": {
        "profiles",
        "firmware_sim",
        "broker.protocol",
        "broker.transport",
        *(
            f"broker.{leaf}"
            for leaf in (
                "backoff",
                "child_process",
                "durable",
                "errors",
                "log",
                "metrics",
                "systemd",
            )
        ),
    },
}
OURS = {*ALLOWED, "toolkit", "tests"}
HEAVY = {"tensorflow", "keras"}


def modules(package: str) -> list[str]:
    """Every module of a package but __main__, which runs when it is imported."""
    found = pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
    return [package, *(m.name for m in found if not m.name.endswith("__main__"))]


def imported(code: str, module: str) -> Iterator[tuple[int, str]]:
    """Yields line and full name of everything that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def sources(package: str) -> Iterator[tuple[str, Path]]:
    """Yields the name and the file of every module of a package."""
    for file in sorted((ROOT / package).rglob("*.py")):
        yield ".".join(file.relative_to(ROOT).with_suffix("").parts), file


def is_within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imports_between_parts(package: str) -> dict[str, set[str]]:
    """Returns, for each sub-package and module directly below, those of them that it imports."""
    parts = {f"{package}.{path.stem}" for path in (ROOT / package).iterdir()} - {
        f"{package}.__init__"  # it collects what people import, from all parts
    }
    found: dict[str, set[str]] = {}
    for module, file in sources(package):
        part = ".".join(module.split(".")[:2])
        if part in parts:
            names = imported(file.read_text(encoding="utf-8"), module)
            others = {".".join(name.split(".")[:2]) for _, name in names} & parts
            found.setdefault(part, set()).update(others - {part})
    return found


def first_cycle(graph: Mapping[str, Set[str]]) -> list[str]:
    """Returns a way along the edges that ends where it began, or nothing if there is none."""
    done: set[str] = set()

    def walk(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node not in done:
            for other in sorted(graph.get(node, ())):
                if cycle := walk(other, [*way, node]):
                    return cycle
            done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := walk(node, []))), [])


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
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for module, file in sources(package)
        for line, name in imported(file.read_text(encoding="utf-8"), module)
        if is_within(name, HEAVY | OURS) and not is_within(name, ALLOWED[package])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("package", "known"),
    [
        ("broker", ("broker.aggregator", "broker.merging")),
        ("firmware_sim", ("firmware_sim.device", "firmware_sim.playing")),
        ("toolkit", ("toolkit.export", "toolkit.training")),
    ],
)
def test_the_parts_of_a_package_import_each_other_without_cycles(
    package: str, known: tuple[str, str]
) -> None:
    graph = imports_between_parts(package)
    assert known[1] in graph[known[0]], "the imports were not found"
    assert first_cycle(graph) == []


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
    names = (
        "toolkit.bench.step.flex",
        "toolkit.bench.step.tensorflow_step",
        "firmware_sim.measure",
    )
    assert loaded_by(*names) & {"safetensors", "paho", "onnx"} == set()


def test_the_command_line_starts_without_tensorflow() -> None:
    assert (
        loaded_by("toolkit.commands.cli") & (HEAVY | {"onnx", "sklearn", "ai_edge_litert"}) == set()
    )


def test_the_check_sees_relative_imports_and_those_inside_functions() -> None:
    code = "def f():\n  import toolkit.zoo as z\n  from ..slice import x\n  from keras import y\n"
    assert list(imported(code, "broker.merging.merge")) == [
        (2, "toolkit.zoo"),
        (3, "broker.slice.x"),
        (4, "keras.y"),
    ]
    assert not is_within("broker.merging.merge", ALLOWED["firmware_sim"])
    assert is_within("broker.log.Log", ALLOWED["firmware_sim"])


def test_the_check_finds_cycles() -> None:
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert first_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
