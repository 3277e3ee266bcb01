"""Any order that `schedule` gives computes the same, and it keeps fewer bytes alive."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.conversion.passes.schedule import Job, most_alive, schedule

EXTERNAL = 3  # tensors 0..2 are there from the start
VARIABLES = 3


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Job], list[int]]:
    """Tasks in an order that can run, and the sizes of their tensors."""
    tensors = EXTERNAL
    jobs: list[Job] = []
    for _ in range(draw(st.integers(0, 3))):
        jobs.append(Job(inputs=(), outputs=(tensors,), first=True))
        tensors += 1
    variables = st.lists(st.integers(0, VARIABLES - 1), max_size=2, unique=True)
    for _ in range(draw(st.integers(0, 12))):
        inputs = draw(st.lists(st.integers(0, tensors - 1), max_size=3))
        in_place = bool(inputs) and draw(st.integers(0, 4)) == 0
        made = 1 if in_place else draw(st.integers(0, 2))
        jobs.append(
            Job(
                inputs=tuple(inputs),
                outputs=tuple(range(tensors, tensors + made)),
                reads=tuple(draw(variables)),
                writes=tuple(draw(variables)),
                in_place=in_place,
            )
        )
        tensors += made
    sizes = draw(st.lists(st.integers(0, 100), min_size=tensors, max_size=tensors))
    return jobs, sizes


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(programs())
def test_an_order_computes_what_the_given_one_does(program: Any) -> None:
    """One program for all that holds: to draw it takes longest."""
    jobs, sizes = program
    order = schedule(jobs, sizes)
    assert sorted(order) == list(range(len(jobs))), "every task runs once"
    there = set(range(EXTERNAL))
    for index in order:
        assert there.issuperset(jobs[index].inputs), "its inputs are there"
        there.update(jobs[index].outputs)
    when = {index: time for time, index in enumerate(order)}
    for early, late in itertools.combinations(range(len(jobs)), 2):
        a, b = jobs[early], jobs[late]
        if {*a.writes} & {*b.reads, *b.writes} or {*a.reads} & {*b.writes}:
            assert when[early] < when[late], "writes keep their place among reads and writes"
    first = [index for index, job in enumerate(jobs) if job.first]
    assert order[: len(first)] == first
    # Both orders run on symbols: each job's result names its inputs and what it read.
    assert meaning(jobs, order) == meaning(jobs, range(len(jobs))), "variables hold what they held"


def meaning(jobs: Sequence[Job], order: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """A number for what every tensor and, in the end, every variable holds."""
    tensors = {tensor: hash(("external", tensor)) for tensor in range(EXTERNAL)}
    variables = {variable: hash(("before", variable)) for variable in range(VARIABLES)}
    for index in order:
        job = jobs[index]
        seen = tuple(tensors[t] for t in job.inputs), tuple(variables[v] for v in job.reads)
        tensors |= {tensor: hash((index, seen, tensor)) for tensor in job.outputs}
        variables |= {variable: hash((index, seen, "write")) for variable in job.writes}
    return tensors, variables


def peak(jobs: Sequence[Job], order: Sequence[int], sizes: Sequence[int]) -> int:
    """The most bytes alive at once: from the job that makes a tensor to the last that needs it."""
    body = {tensor: tensor for job in jobs for tensor in job.inputs}
    for job in jobs:
        for tensor in job.outputs:
            body[tensor] = body[job.inputs[0]] if job.in_place else tensor
    born = {body[t]: time for time, i in reversed([*enumerate(order)]) for t in jobs[i].outputs}
    died = {body[t]: time for time, i in enumerate(order) for t in jobs[i].inputs}
    return max(
        sum(sizes[t] for t, time in born.items() if time <= now <= died.get(t, time))
        for now in range(len(order))
    )


def test_what_the_end_needs_is_made_at_the_end() -> None:
    """A forward pass over 500 bytes, beside 1000 bytes that only the last job wants."""
    jobs = [
        Job(inputs=(0,), outputs=(1,)),  # large, made too early
        Job(inputs=(0,), outputs=(2,)),
        Job(inputs=(2,), outputs=(3,)),
        Job(inputs=(1, 3), outputs=(4,)),
    ]
    sizes = [1, 1000, 500, 1, 1]
    order = schedule(jobs, sizes)
    assert order == [1, 2, 0, 3]
    assert peak(jobs, range(4), sizes) == 1501
    assert peak(jobs, order, sizes) == 1002


def test_a_reshape_takes_no_memory() -> None:
    """Job 1 only renames 1000 bytes, so that making them late is worth it in spite of it."""
    jobs = [
        Job(inputs=(0,), outputs=(1,)),
        Job(inputs=(1,), outputs=(2,), in_place=True),
        Job(inputs=(0,), outputs=(3,)),
        Job(inputs=(3,), outputs=(4,)),
        Job(inputs=(2, 4), outputs=(5,)),
    ]
    sizes = [1, 1000, 1000, 500, 1, 1]
    order = schedule(jobs, sizes)
    assert order == [2, 3, 0, 1, 4]
    assert (peak(jobs, range(5), sizes), peak(jobs, order, sizes)) == (1501, 1002)


def test_a_backward_pass_makes_its_masks_when_it_needs_them() -> None:
    """Six layers, whose gradients need the activation and a mask that is made from it."""
    depth, size = 6, 100
    activations, masks, gradients = (range(k, k + depth) for k in (1, 1 + depth, 1 + 2 * depth))
    layers = [Job(inputs=(activations[i] - 1,), outputs=(activations[i],)) for i in range(depth)]
    early = [Job(inputs=(activations[i],), outputs=(masks[i],)) for i in range(depth)]
    backward = [
        Job(
            inputs=(gradients[i - 1] if i else 0, activations[-1 - i], masks[-1 - i]),
            outputs=(gradients[i],),
        )
        for i in range(depth)
    ]
    jobs = [job for pair in zip(layers, early, strict=True) for job in pair] + backward
    sizes = [0] + [size] * (3 * depth)
    # Six activations, the first gradient, and all six masks or only the one that is needed now.
    assert peak(jobs, range(len(jobs)), sizes) == (6 + 6 + 1) * size
    assert peak(jobs, schedule(jobs, sizes), sizes) == (6 + 1 + 1) * size


def test_one_part_of_a_batch_is_done_before_the_next() -> None:
    """dy → spread_p, which both gradients of part p need: dx_p of it alone, dk_p with some of x.

    The bytes alone do not tell that dk_p had better follow dx_p: it begins more than it ends.
    """
    x, dy, count = 0, 1, 8
    made = itertools.count(2)
    jobs, dxs, dks = [], [], []
    for _ in range(count):
        spread, wide, dx, some, dk = (next(made) for _ in range(5))
        jobs += [
            Job(inputs=(dy,), outputs=(spread,)),
            Job(inputs=(spread,), outputs=(wide,)),
            Job(inputs=(wide,), outputs=(dx,)),
            Job(inputs=(x,), outputs=(some,)),
            Job(inputs=(some, spread), outputs=(dk,)),
        ]
        dxs.append(dx)
        dks.append(dk)
    whole, total = next(made), next(made)
    jobs += [Job(inputs=tuple(dxs), outputs=(whole,)), Job(inputs=tuple(dks), outputs=(total,))]
    sizes = [0, 0, *[30, 30, 10, 30, 1] * count, 10 * count, 1]
    # The whole dx beside its eight parts; or seven parts, dk's, and three times 30 of the eighth.
    assert peak(jobs, schedule(jobs, sizes), sizes) <= 2 * 10 * count + count
    assert most_alive(jobs, sizes, range(len(jobs))) == peak(jobs, range(len(jobs)), sizes)


@pytest.mark.parametrize("jobs", [[], [Job(inputs=(), outputs=())]])
def test_little_to_order(jobs: Any) -> None:
    assert schedule(jobs, []) == list(range(len(jobs)))
