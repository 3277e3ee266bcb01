"""Orders operations so that few bytes are alive at any time.

The converter computes what the backward pass needs together with the forward pass, long before.

List scheduling, from the end backwards: of the operations whose users are all placed, take the
best, until none is left. Going backwards, an operation's outputs end (they are not alive before it)
and its inputs begin. The best one is found by a heuristic; two heuristics are tried, and the
order with fewer bytes alive at once is kept.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.conversion.flatbuffer import Model, Subgraph, operation, tensor_bytes

_VARIABLES = frozenset({"READ_VARIABLE", "ASSIGN_VARIABLE"})


@dataclass(frozen=True)
class Job:
    """One operation, by the numbers of its tensors."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[int, ...] = ()  # variables
    writes: tuple[int, ...] = ()
    in_place: bool = False  # the output is the input under another shape
    first: bool = False  # runs before everything else


def schedule_operations(model: Model) -> None:
    """Puts the operations of every subgraph in the order that keeps the fewest bytes alive."""
    for subgraph in model.subgraphs:
        sizes = [tensor_bytes(model, tensor) for tensor in subgraph.tensors]
        order = schedule(_jobs(model, subgraph), sizes)
        subgraph.operators = [subgraph.operators[i] for i in order]


def _jobs(model: Model, subgraph: Subgraph) -> list[Job]:
    jobs = []
    for operator in subgraph.operators:
        kind = operation(model, operator)
        handles = [int(t) for t in operator.inputs[:1]] if kind in _VARIABLES else []
        jobs.append(
            Job(
                inputs=tuple(int(t) for t in operator.inputs if t >= 0),
                outputs=tuple(int(t) for t in operator.outputs),
                reads=tuple(handles) if kind == "READ_VARIABLE" else (),
                writes=tuple(handles) if kind == "ASSIGN_VARIABLE" else (),
                in_place=kind == "RESHAPE",
                first=kind in ("CALL_ONCE", "VAR_HANDLE"),
            )
        )
    return jobs


def schedule(jobs: Sequence[Job], sizes: Sequence[int]) -> list[int]:
    """An order of the jobs that respects data, variables and `first`."""
    graph = _Graph(jobs, sizes)
    orders = (
        _backwards(graph, heuristic)[::-1] for heuristic in (_fewest_bytes, _finish_what_began)
    )
    return min(orders, key=lambda order: most_alive(jobs, sizes, order))


def most_alive(jobs: Sequence[Job], sizes: Sequence[int], order: Sequence[int]) -> int:
    """Most bytes that are alive at once while the jobs run in that order."""
    graph = _Graph(jobs, sizes)
    made = {tensor for outputs in graph.outputs for tensor in outputs}
    last = {tensor: job for job in order for tensor in graph.inputs[job] & made}
    alive = most = 0
    for job in order:
        alive += sum(sizes[tensor] for tensor in graph.outputs[job])
        most = max(most, alive)
        alive -= sum(sizes[t] for t in graph.inputs[job] & made if last[t] == job)
    return most


class _Graph:
    """The jobs by the memory that they use: reshapes are views, and make nothing."""

    def __init__(self, jobs: Sequence[Job], sizes: Sequence[int]) -> None:
        body = _owners(jobs)
        self.sizes = sizes
        self.before = _dependencies(jobs)
        self.inputs = [{body[tensor] for tensor in job.inputs} for job in jobs]
        self.views = [job.in_place for job in jobs]
        self.outputs = [() if job.in_place else job.outputs for job in jobs]
        self.touched = [
            {*read, *(body[tensor] for tensor in job.outputs)}
            for read, job in zip(self.inputs, jobs, strict=True)
        ]


@dataclass
class _State:
    """The state of the walk backwards."""

    ready: set[int]  # jobs that can be placed
    begun: dict[int, int]  # the tensors that are alive, and since how many jobs
    users: dict[int, set[int]]  # of each tensor, those that are not placed; views are none

    def cost(self, graph: _Graph, job: int) -> int:
        """The number of bytes alive before the job, minus those after it."""
        begins = sum(graph.sizes[t] for t in graph.inputs[job] if t not in self.begun)
        return begins - sum(graph.sizes[t] for t in graph.outputs[job] if t in self.begun)

    def waiting(self, graph: _Graph, job: int) -> int:
        """Bytes that the job begins and that have users which cannot be placed yet."""
        new = (t for t in graph.inputs[job] if t not in self.begun)
        return sum(graph.sizes[t] for t in new if not self.users[t] - {job} <= self.ready)


_Heuristic = Callable[[_Graph, _State, int], tuple[int, ...]]


def _fewest_bytes(graph: _Graph, state: _State, job: int) -> tuple[int, ...]:
    return state.cost(graph, job), -job


def _finish_what_began(graph: _Graph, state: _State, job: int) -> tuple[int, ...]:
    """What costs nothing; then what goes on with the youngest tensor, so that one part of a batch
    is done before the next, and begins nothing that has to wait."""
    cost, waiting = state.cost(graph, job), state.waiting(graph, job)
    if cost + waiting <= 0:
        return 0, cost, -job
    age = max((state.begun.get(t, -1) for t in graph.touched[job]), default=-1)
    return 1, waiting > 0, -age, cost, -job


def _backwards(graph: _Graph, heuristic: _Heuristic) -> list[int]:
    """Jobs that can be placed wait in a heap under their rank; one whose rank may have changed is
    ranked again, and what it had in the heap no longer counts."""
    waiting = [0] * len(graph.before)  # users that are not placed yet
    users: dict[int, set[int]] = defaultdict(set)
    touching: dict[int, set[int]] = defaultdict(set)  # of each tensor, all jobs that it ranks
    for job, needed in enumerate(graph.before):
        for earlier in needed:
            waiting[earlier] += 1
        for tensor in graph.inputs[job]:
            if not graph.views[job]:
                users[tensor].add(job)
        for tensor in graph.touched[job]:
            touching[tensor].add(job)
    state = _State({i for i, count in enumerate(waiting) if count == 0}, {}, users)
    ranks = {job: heuristic(graph, state, job) for job in state.ready}
    heap = [(rank, job) for job, rank in ranks.items()]
    heapq.heapify(heap)
    placed: list[int] = []
    while state.ready:
        rank, chosen = heapq.heappop(heap)
        if ranks.get(chosen) != rank:
            continue
        state.ready.remove(chosen)
        del ranks[chosen]
        placed.append(chosen)
        for tensor in graph.outputs[chosen]:
            state.begun.pop(tensor, None)
        for tensor in graph.inputs[chosen]:
            state.begun.setdefault(tensor, len(placed))
            users[tensor].discard(chosen)
        changed, ranked = {*graph.outputs[chosen], *graph.inputs[chosen]}, set[int]()
        for earlier in graph.before[chosen]:
            waiting[earlier] -= 1
            if waiting[earlier] == 0:
                state.ready.add(earlier)
                ranked.add(earlier)
                changed |= graph.touched[earlier]
        ranked.update(job for tensor in changed for job in touching[tensor] & state.ready)
        for job in ranked:
            rank = heuristic(graph, state, job)
            if ranks.get(job) != rank:
                ranks[job] = rank
                heapq.heappush(heap, (rank, job))
    return placed


def _owners(jobs: Sequence[Job]) -> dict[int, int]:
    """The tensor whose memory each tensor uses: its own, or through reshapes another's."""
    body: dict[int, int] = {}
    for job in jobs:
        for tensor in job.inputs:
            body.setdefault(tensor, tensor)
        for tensor in job.outputs:
            body[tensor] = body[job.inputs[0]] if job.in_place else tensor
    return body


def _dependencies(jobs: Sequence[Job]) -> list[set[int]]:
    """For each job, those that must come before it."""
    before: list[set[int]] = [set() for _ in jobs]
    producer: dict[int, int] = {}
    last_write: dict[int, int] = {}
    reads_since: dict[int, list[int]] = defaultdict(list)
    lead = [index for index, job in enumerate(jobs) if job.first]
    for earlier, later in itertools.pairwise(lead):
        before[later].add(earlier)
    for index, job in enumerate(jobs):
        if not job.first:
            before[index].update(lead[-1:])
        before[index].update(producer[t] for t in job.inputs if t in producer)
        for variable in job.reads:
            if variable in last_write:
                before[index].add(last_write[variable])
            reads_since[variable].append(index)
        for variable in job.writes:
            before[index].update(reads_since.pop(variable, []))
            if variable in last_write:
                before[index].add(last_write[variable])
            last_write[variable] = index
        for tensor in job.outputs:
            producer[tensor] = index
        before[index].discard(index)
    return before
