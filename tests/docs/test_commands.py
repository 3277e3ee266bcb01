"""Every command of README and docs is run as written, in short form, or says why it is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.main

from broker.aggregator import __main__ as aggregator
from broker.aggregator.options import arguments as aggregator_arguments
from firmware_sim.device import options as device
from tests.docs.pages import ROOT, Pages, StartSession
from toolkit.commands.cli import app

PAGES = ("README.md", "docs/*.md", "examples/*/README.md")
# Pages of measurements: each of their commands takes minutes, so only its options are checked.
MEASURED = ("docs/performance.md", "docs/reproduction.md")
# What would take minutes, and therefore must stand in a block that says `not run`.
LONG = re.compile(
    r"make (demo|test|quick|pi|wheelhouse)\b|pip install|sudo "
    r"|toolkit (bench|compare|demo|experiment|play)\b"
)
# Only what makes a command shorter: fewer rounds and steps, smaller networks.
SHORTER = {
    "--rounds 20 ": "--rounds 2 --deadline 20 ",
    "--rounds 5 ": "--rounds 2 --steps 10 ",
    "--rounds 15 ": "--rounds 3 ",
    "--rounds 25 ": "--rounds 5 ",
    "--task digits --share": "--task digits --steps 10 --share",
    "--task digits --fleet": "--task digits --steps 10 --fleet",
    "branch --max-step-ms 20": "branch --max-width 1 --max-step-ms 2000",  # however busy it is here
    "--profile weak --out": "--profile weak --task digits --topology cascading --out",
    "--topology two-loss": "--topology cascading",  # whose bundles are there already
    "--profile powerful --task cifar10": "--profile powerful --task digits",
    "--profile weak --tune": "--profile weak --task digits --tune",
}


def _pages() -> list[str]:
    found = (path for pattern in PAGES for path in sorted(ROOT.glob(pattern)))
    return [str(path.relative_to(ROOT)) for path in found]


RUN = [page for page in _pages() if page not in MEASURED and not page.startswith("examples/")]


@pytest.mark.xdist_group("commands of the docs")  # they share exports
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs_from_top_to_bottom(name: str, pages: Pages, session: StartSession) -> None:
    (page,) = pages(name)
    blocks = list(page.blocks())
    for block in blocks:
        if block.language == "sh" and not block.not_run:
            long = [command for command in block.commands if LONG.search(command)]
            assert not long, f"write <!-- not run: takes minutes --> before the block of {long}"
    if any(block.language == "sh" and not block.not_run for block in blocks):
        here = session(SHORTER)
        for block in blocks:
            here.run(block)


@pytest.mark.parametrize("name", _pages())
def test_every_option_that_a_page_uses_exists(
    name: str, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,) = pages(name)
    for block in page.blocks():
        for command in block.commands if block.language == "sh" else []:
            if command.startswith("export "):
                for assignment in shlex.split(command)[1:]:
                    monkeypatch.setenv(*assignment.split("=", 1))
            for part in re.split(r"\s*(?:&&|;|\|| &$)\s*", command):
                assert not (wrong := _wrong_in(part)), f"{part}\n{wrong}"


def _wrong_in(command: str) -> str:
    """What the program's own parser has against a command; nothing is run."""
    match shlex.split(command):
        case ["toolkit", *arguments] | ["python", "-m", "toolkit", *arguments]:
            return _wrong_in_toolkit(arguments)
        case ["python" | "python3", "-m", module, *arguments] if module in _PARSERS:
            try:
                _PARSERS[module]().parse_args(arguments)
            except SystemExit as stop:
                return "" if stop.code == 0 else "the parser refuses it"
        case ["make", target, *_] if "=" not in target:
            rules = (ROOT / "Makefile").read_text(encoding="utf-8")
            return "" if re.search(rf"^{target}:", rules, re.MULTILINE) else f"no target {target}"
    return ""


_PARSERS = {
    "broker.aggregator": aggregator_arguments,
    "firmware_sim.device": device.arguments,
}


_USAGE: type[Any] = typer.BadParameter.__bases__[0]  # UsageError, which typer keeps to itself


def _wrong_in_toolkit(arguments: list[str]) -> str:
    command = typer.main.get_command(app)
    while known := getattr(command, "commands", None):  # a group
        if not arguments or arguments[0] not in known:
            return f"there is no command {arguments[:1]}"
        command, arguments = known[arguments[0]], arguments[1:]
    try:
        command.make_context("toolkit", arguments)
    except typer.Exit:  # --help
        return ""
    except _USAGE as error:
        return str(error.format_message())
    return ""


def test_every_option_in_the_text_is_one_of_some_program(pages: Pages) -> None:
    known = set(_options(typer.main.get_command(app))) | {"--help"}
    for program in (aggregator, device):
        known |= set(re.findall(r"--[a-z0-9-]+", program.arguments().format_help()))
    for page in pages("README.md", "docs/*.md"):
        text = re.sub(r"^```.*?^```$", "", page.path.read_text("utf-8"), flags=re.M | re.S)
        spans = re.findall(r"`([^`\n]+)`", text)
        named = {option for span in spans for option in re.findall(r"(?<!\S)--[a-z0-9-]+", span)}
        assert named <= known, page.name


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for inner in getattr(command, "commands", {}).values():
        yield from _options(inner)


def test_no_command_hides_in_a_block_of_another_language(pages: Pages) -> None:
    for page in pages(*PAGES):
        for block in page.blocks():
            assert block.language not in ("bash", "shell", "console", "shellsession"), page.name


def test_blocks_that_are_not_run_are_few_and_say_why(
    pages: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        f"{page.name}: {block.commands[0]} … ({block.not_run})"
        for page in pages(*PAGES)
        for block in page.blocks()
        if block.not_run
    ]
    run = sum(
        block.language == "sh" and not block.not_run
        for page in pages(*PAGES)
        for block in page.blocks()
        if page.name not in MEASURED
    )
    with capsys.disabled():
        print(f"\n{run} blocks are run, {len(found)} are not:", *found, sep="\n  ")
    assert run > len(found)
