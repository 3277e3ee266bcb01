"""Every target of `toolkit bench fuzz` takes some hundred damaged inputs, the same in each run.

The command itself is guided by coverage and runs for minutes; here the same changes are made to
the same valid inputs and to the committed corpus, without guidance.
"""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import WireError
from broker.protocol.wire import decode
from toolkit.bench.fuzz.changes import LARGEST, change, inputs
from toolkit.bench.fuzz.target import Session, Target
from toolkit.bench.fuzz.targets import NAMES, chosen, target_of
from toolkit.errors import ToolkitError

CORPUS = Path(__file__).parent / "corpus"
EXECUTIONS = {
    "pack": 60,
    "picture": 150,
    "source_settings": 200,
    "aggregator": 60,
    "device": 120,
    "journal": 150,
}  # the others: 600


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    return target_of(request.param)


@pytest.fixture
def session(target: Target, tmp_path: Path) -> Iterator[Session]:
    opened = target.open(tmp_path)
    yield opened
    opened.close()


def corpus_of(target: Target) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*"))]


def test_damaged_inputs_cause_nothing_that_is_not_declared(
    target: Target, session: Session
) -> None:
    seeds = [*target.seeds(), *corpus_of(target)]
    count = len(seeds) + EXECUTIONS.get(target.name, 600)
    made = inputs(seeds, 0, target.mutate(target.seeds()))
    for number, data in enumerate(itertools.islice(made, count)):
        try:
            session.run(data)
        except BaseException as error:
            error.add_note(f"input {number} of seed 0")
            raise


def test_inputs_are_repeatable_and_many(target: Target) -> None:
    seeds = target.seeds()

    def first(seed: int) -> list[bytes]:
        return list(itertools.islice(inputs(seeds, seed, target.mutate(seeds)), 100))

    found = first(3)
    assert found == first(3) != first(4)
    assert len({*found}) > 50
    assert max(map(len, found)) <= LARGEST


def test_changes_reach_every_check_of_the_wire() -> None:
    seeds = target_of("wire").seeds()
    sentences = set()
    for data in itertools.islice(inputs(seeds, 3, target_of("wire").mutate(seeds)), 1_500):
        try:
            decode(data, limit=LARGEST)
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


def test_a_change_makes_the_length_of_a_header_right_again() -> None:
    (verdict,) = (seed for seed in target_of("wire").seeds() if b"verdict" in seed)
    rng = random.Random(0)
    changed = [change(rng, verdict, [verdict]) for _ in range(300)]
    right = [data for data in changed if 8 + int.from_bytes(data[:8], "little") == len(data)]
    assert len(right) > 150
    assert len({*map(len, right)}) > 10


def test_there_is_no_other_target() -> None:
    assert [target.name for target in chosen([])] == list(NAMES)
    assert [target.name for target in chosen(["wire", "pack"])] == ["wire", "pack"]
    with pytest.raises(ToolkitError, match=r"^there is no target 'wires'; there are profile, "):
        chosen(["wires"])
