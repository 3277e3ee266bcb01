"""Orders operations so that few bytes are alive at any time.

Greedy list scheduling, from the end backwards: among the operations whose users are all placed,
take the one that leaves the least alive before it. Going backwards, an operation's outputs end
(they are not alive before it) and its inputs begin.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One operation, by the numbers of its tensors."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[int, ...] = ()  # variables
    writes: tuple[int, ...] = ()
    in_place: bool = False  # the output is the input under another shape
    first: bool = False  # runs before everything else


def schedule(tasks: Sequence[Task], sizes: Sequence[int]) -> list[int]:
    """An order of the tasks that respects data, variables and `first`."""
    before = _dependencies(tasks)
    waiting = [0] * len(tasks)  # users that are not placed yet
    for needed in before:
        for task in needed:
            waiting[task] += 1
    body = _owners(tasks)
    ready = {i for i, users in enumerate(waiting) if users == 0}
    alive: set[int] = set()
    backwards: list[int] = []
    while ready:
        chosen = min(ready, key=lambda i: (_cost(tasks[i], body, alive, sizes), -i))
        ready.remove(chosen)
        backwards.append(chosen)
        if not tasks[chosen].in_place:
            alive.difference_update(tasks[chosen].outputs)
        alive.update(body[tensor] for tensor in tasks[chosen].inputs)
        for earlier in before[chosen]:
            waiting[earlier] -= 1
            if waiting[earlier] == 0:
                ready.add(earlier)
    return backwards[::-1]


def _cost(task: Task, body: dict[int, int], alive: set[int], sizes: Sequence[int]) -> int:
    """How many more bytes are alive before the task than after it."""
    begun = {body[t] for t in task.inputs} - alive
    ended = () if task.in_place else task.outputs
    return sum(sizes[t] for t in begun) - sum(sizes[t] for t in ended if t in alive)


def _owners(tasks: Sequence[Task]) -> dict[int, int]:
    """The tensor whose memory each tensor uses: its own, or through reshapes another's."""
    body: dict[int, int] = {}
    for task in tasks:
        for tensor in task.inputs:
            body.setdefault(tensor, tensor)
        for tensor in task.outputs:
            body[tensor] = body[task.inputs[0]] if task.in_place else tensor
    return body


def _dependencies(tasks: Sequence[Task]) -> list[set[int]]:
    """For each task, those that must come before it."""
    before: list[set[int]] = [set() for _ in tasks]
    producer: dict[int, int] = {}
    last_write: dict[int, int] = {}
    reads_since: dict[int, list[int]] = defaultdict(list)
    lead = [index for index, task in enumerate(tasks) if task.first]
    for earlier, later in itertools.pairwise(lead):
        before[later].add(earlier)
    for index, task in enumerate(tasks):
        if not task.first:
            before[index].update(lead[-1:])
        before[index].update(producer[t] for t in task.inputs if t in producer)
        for variable in task.reads:
            if variable in last_write:
                before[index].add(last_write[variable])
            reads_since[variable].append(index)
        for variable in task.writes:
            before[index].update(reads_since.pop(variable, []))
            if variable in last_write:
                before[index].add(last_write[variable])
            last_write[variable] = index
        for tensor in task.outputs:
            producer[tensor] = index
        before[index].discard(index)
    return before
