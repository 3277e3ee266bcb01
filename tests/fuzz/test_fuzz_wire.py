"""A short run of the fuzzer, and that it would notice."""

import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from broker.errors import WireError
from broker.protocol.messages import Refused
from broker.protocol.wire import decode

SCRIPT = Path(__file__).with_name("fuzz_wire.py")


@pytest.fixture(scope="module")
def fuzz_wire() -> Iterator[ModuleType]:
    """The script, which is no test and in no package."""
    spec = importlib.util.spec_from_file_location("fuzz_wire", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_wire"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fuzz_wire"]


def test_no_damaged_message_raises_anything_but_a_refusal(fuzz_wire: ModuleType) -> None:
    corpus = [*fuzz_wire.golden().values(), *fuzz_wire.packed().values()]
    assert len(corpus) == 10
    ran = fuzz_wire.fuzz(fuzz_wire.one_input, corpus, seed=0, executions=8_000)
    assert ran.executions == 8_000


def test_the_golden_messages_pass_every_check(fuzz_wire: ModuleType) -> None:
    """So that damage to them reaches what lies behind the checks."""
    corpus = fuzz_wire.golden()
    for update in (corpus["update"], *fuzz_wire.packed().values()):
        fuzz_wire._update(update)
    fuzz_wire._birth(corpus["device"])
    fuzz_wire._parts(corpus["part"])
    with pytest.raises(Refused):
        fuzz_wire._update(corpus["shared"])


def test_inputs_are_many_repeatable_and_reach_deep(fuzz_wire: ModuleType) -> None:
    corpus = list(fuzz_wire.golden().values())

    def first(seed: int) -> list[bytes]:
        return list(itertools.islice(fuzz_wire.inputs(corpus, seed), 3_000))

    made = first(seed=3)
    assert made == first(seed=3) != first(seed=4)
    assert len({*made}) > 2_700
    sentences = set()
    for data in made:
        try:
            decode(data, limit=fuzz_wire.LIMIT)
            sentences.add("accepted")
        except WireError as error:
            sentences.add(re.sub(r"'.*'|\d+", "…", str(error)))
    assert {
        "accepted",
        "the message is cut off before its header.",
        "the message's header is too long, or cut off.",
        "the message's header is not valid JSON.",
        "the message's metadata is not valid JSON.",
        "the message does not say its kind.",
        "the message has no metadata ….",
        "the message has … bytes of data, not ….",
        "tensor … is not where its shape and neighbours put it.",
        "tensor … is not described as a tensor.",
    } <= sentences


def test_a_crash_tells_the_bytes(fuzz_wire: ModuleType) -> None:
    def fragile(data: bytes) -> None:
        assert data[-1:] != b"\x07"

    with pytest.raises(fuzz_wire.Crash) as caught:
        fuzz_wire.fuzz(fragile, [b"\x06"], seed=0, executions=10_000)
    assert caught.value.data.endswith(b"\x07")
    assert str(caught.value).endswith(f"these bytes: {caught.value.data.hex()}")


def test_it_runs_alone(fuzz_wire: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fuzz_wire.main(["--executions", "20", "--seed", "5"])
    assert re.fullmatch(
        r"20 executions, \d+ per second, no crash \(seed 5\)\n", capsys.readouterr().out
    )
