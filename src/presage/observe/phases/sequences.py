"""Executions as sequences of phases: run lengths, prototypes, graphs, and how alike they are.

An execution is the phases of one pod, row by row or sample by sample; −1 (no phase) is left out.
Everything is a plain value with `to_json`, for a page or a program to draw.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Dwell",
    "Graph",
    "Prototype",
    "TreeNode",
    "covering",
    "length_bin",
    "markov_graph",
    "prototype_tree",
    "run_lengths",
    "semi_markov_graph",
    "similarity",
]

Ints = npt.NDArray[np.int64]
Step = tuple[int, int]
"""A phase and the bin of its length."""


@dataclass(frozen=True, slots=True)
class Dwell:
    """A phase that lasted for so many rows."""

    phase: int
    length: int


@dataclass(frozen=True, slots=True)
class TreeNode:
    """What executions have in common up to here; the root has phase −1."""

    phase: int
    bin: int
    count: int
    probability: float
    """Of this step, given those before it."""
    ends: int
    """Executions that end here."""
    children: tuple[TreeNode, ...]

    def to_json(self) -> dict[str, Any]:
        """The node and all below it."""
        return {
            "phase": self.phase,
            "lengths": length_range(self.bin) if self.phase >= 0 else None,
            "count": self.count,
            "probability": self.probability,
            "ends": self.ends,
            "children": [child.to_json() for child in self.children],
        }


@dataclass(frozen=True, slots=True)
class Prototype:
    """A way in which executions go: its steps and the share of executions that take it."""

    steps: tuple[Step, ...]
    count: int
    share: float

    def to_json(self) -> dict[str, Any]:
        """With the range of lengths of each step."""
        steps = [{"phase": phase, "lengths": length_range(size)} for phase, size in self.steps]
        return {"steps": steps, "count": self.count, "share": self.share}


@dataclass(frozen=True, slots=True)
class Graph:
    """States and the moves between them. A state is the last phases, the newest last."""

    memory: int
    states: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    """Rows spent in each state, or visits to it."""
    moves: dict[tuple[int, int], float]
    """(state, state) -> probability."""
    dwell: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """State -> p10, p50 and p90 of the rows it lasts; empty for a graph that moves every row."""

    def to_json(self) -> dict[str, Any]:
        """Nodes and edges by name."""
        names = ["→".join(str(phase) for phase in state) for state in self.states]
        nodes = [
            {"id": name, "phase": state[-1], "count": count}
            | ({"dwell_rows": list(self.dwell[at])} if at in self.dwell else {})
            for at, (name, state, count) in enumerate(
                zip(names, self.states, self.counts, strict=True)
            )
        ]
        edges = [
            {"from": names[a], "to": names[b], "probability": share}
            for (a, b), share in self.moves.items()
        ]
        return {"memory": self.memory, "nodes": nodes, "edges": edges}


def run_lengths(phases: Ints | Sequence[int]) -> list[Dwell]:
    """The phases in order, each with the number of rows it lasted."""
    known = np.asarray(phases, dtype=np.int64)
    known = known[known >= 0]
    if not len(known):
        return []
    first = np.flatnonzero(np.concatenate([[True], known[1:] != known[:-1]]))
    lengths = np.diff(np.append(first, len(known)))
    return [Dwell(int(known[at]), int(n)) for at, n in zip(first, lengths, strict=True)]


def length_bin(length: int) -> int:
    """Lengths 1, 2–3, 4–7, 8–15 … have the bins 0, 1, 2, 3 …"""
    return int(length).bit_length() - 1


def length_range(size: int) -> tuple[int, int]:
    """The shortest and the longest length of a bin."""
    return 1 << size, (2 << size) - 1


def prototype_tree(executions: Iterable[Ints | Sequence[int]], depth: int = 8) -> TreeNode:
    """How executions go, step by step, down to some depth: a branch for each (phase, bin of
    lengths), the most frequent first. Longer executions end at the last level."""
    return _node((-1, 0), 1.0, [_steps(phases)[:depth] for phases in executions])


def covering(
    executions: Iterable[Ints | Sequence[int]], share: float = 0.9, depth: int = 8
) -> list[Prototype]:
    """The fewest prototypes that together cover so much of the executions, the most frequent
    first."""
    ways = Counter(_steps(phases)[:depth] for phases in executions)
    ways.pop((), None)
    total, covered, prototypes = ways.total(), 0, list[Prototype]()
    for steps, count in sorted(ways.items(), key=lambda item: (-item[1], item[0])):
        if covered >= share * total:
            break
        prototypes.append(Prototype(steps, count, count / total))
        covered += count
    return prototypes


def markov_graph(executions: Iterable[Ints | Sequence[int]], memory: int = 1) -> Graph:
    """A move every row; a state is the phases of the last `memory` rows."""
    known = (np.asarray(each, dtype=np.int64) for each in executions)
    return _graph([each[each >= 0].tolist() for each in known], memory)


def semi_markov_graph(executions: Iterable[Ints | Sequence[int]], memory: int = 1) -> Graph:
    """A move when the phase changes; a state is the last `memory` different phases, and lasts as
    long as the newest of them. The last run of an execution counts as long as it was seen."""
    runs = [run_lengths(each) for each in executions]
    graph = _graph([[run.phase for run in each] for each in runs], memory)
    number = {state: at for at, state in enumerate(graph.states)}
    lasted: defaultdict[int, list[int]] = defaultdict(list)
    for each in runs:
        for at in range(memory - 1, len(each)):
            state = tuple(run.phase for run in each[at - memory + 1 : at + 1])
            lasted[number[state]].append(each[at].length)
    dwell = {}
    for at, lengths in sorted(lasted.items()):
        low, middle, high = np.quantile(lengths, (0.1, 0.5, 0.9)).tolist()
        dwell[at] = (low, middle, high)
    return Graph(memory, graph.states, graph.counts, graph.moves, dwell)


def similarity(first: Ints | Sequence[int], second: Ints | Sequence[int]) -> float:
    """1 for executions with the same runs, 0 for those with nothing in common: one minus the edit
    distance between the sequences of runs ÷ the most it can be. To add or remove a run costs 1; to
    make one into another costs 1 if the phases differ, else the difference of their lengths ÷ the
    longer."""
    a, b = run_lengths(first), run_lengths(second)
    if not a or not b:
        return 1.0 if len(a) == len(b) else 0.0
    costs = np.arange(len(b) + 1, dtype=np.float64)
    for i, one in enumerate(a, start=1):
        before, costs = costs, np.empty(len(b) + 1)
        costs[0] = i
        for j, other in enumerate(b, start=1):
            same = one.phase == other.phase
            longer = max(one.length, other.length)
            change = abs(one.length - other.length) / longer if same else 1.0
            costs[j] = min(before[j - 1] + change, before[j] + 1, costs[j - 1] + 1)
    return float(1 - costs[-1] / max(len(a), len(b)))


def _steps(phases: Ints | Sequence[int]) -> tuple[Step, ...]:
    return tuple((run.phase, length_bin(run.length)) for run in run_lengths(phases))


def _node(step: Step, probability: float, below: list[tuple[Step, ...]]) -> TreeNode:
    by_step: defaultdict[Step, list[tuple[Step, ...]]] = defaultdict(list)
    for steps in below:
        if steps:
            by_step[steps[0]].append(steps[1:])
    children = tuple(
        _node(child, len(rest) / len(below), rest)
        for child, rest in sorted(by_step.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    ends = len(below) - sum(child.count for child in children)
    return TreeNode(step[0], step[1], len(below), probability, ends, children)


def _graph(paths: Sequence[Sequence[int]], memory: int) -> Graph:
    if memory < 1:
        raise ValueError("a graph remembers at least one phase")
    visits: Counter[tuple[int, ...]] = Counter()
    moves: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for path in paths:
        states = [tuple(path[at : at + memory]) for at in range(len(path) - memory + 1)]
        visits.update(states)
        moves.update(pairwise(states))
    names = tuple(sorted(visits))
    number = {state: at for at, state in enumerate(names)}
    leaving: Counter[tuple[int, ...]] = Counter()
    for (state, _), count in moves.items():
        leaving[state] += count
    shares = {(number[a], number[b]): n / leaving[a] for (a, b), n in sorted(moves.items())}
    return Graph(memory, names, tuple(visits[state] for state in names), shares)
