"""Executions as sequences: runs, prototypes, graphs, likeness."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.observe.phases.sequences import (
    Dwell,
    covering,
    length_bin,
    markov_graph,
    prototype_tree,
    run_lengths,
    semi_markov_graph,
    similarity,
)

EXECUTIONS = [[-1, 0, 0, 1, 1, 1, 2]] * 6 + [[0, 0, 1, 1, 2]] * 3 + [[2, 2, 2, 2]]
PHASES = st.lists(st.integers(-1, 3), max_size=30)


def test_run_lengths() -> None:
    assert run_lengths([-1, -1, 0, 0, 1, -1, 1, 0]) == [Dwell(0, 2), Dwell(1, 2), Dwell(0, 1)]
    assert run_lengths(np.array([-1], dtype=np.int64)) == []
    assert [length_bin(n) for n in (1, 2, 3, 4, 7, 8)] == [0, 1, 1, 2, 2, 3]


def test_the_tree_counts_what_executions_have_in_common() -> None:
    tree = prototype_tree(EXECUTIONS)
    assert (tree.count, tree.ends) == (10, 0)
    first = tree.children[0]
    assert (first.phase, first.count, first.probability) == (0, 9, 0.9)
    assert first.children[0].children[0].ends == 9
    assert tree.children[1].probability == pytest.approx(0.1)
    assert json.loads(json.dumps(tree.to_json()))["children"][0]["lengths"] == [2, 3]
    assert prototype_tree(EXECUTIONS, depth=1).children[0].ends == 9


def test_few_prototypes_cover_most_executions() -> None:
    found = covering(EXECUTIONS)
    assert [(way.count, way.share) for way in found] == [(9, 0.9)]
    assert found[0].steps == ((0, 1), (1, 1), (2, 0))
    assert len(covering(EXECUTIONS, share=1.0)) == 2
    assert covering([[-1, -1]]) == []
    assert found[0].to_json()["steps"][0] == {"phase": 0, "lengths": (2, 3)}


def test_graphs_with_memory() -> None:
    alternating = [[0, 1, 0, 2, 0, 1, 0, 2, 0, 1]]
    one = markov_graph(alternating)
    assert one.states == ((0,), (1,), (2,))
    assert one.moves[0, 1] == pytest.approx(0.6)
    two = markov_graph(alternating, memory=2)
    after = {(two.states[a], two.states[b]): share for (a, b), share in two.moves.items()}
    assert after[(1, 0), (0, 2)] == 1.0
    assert after[(2, 0), (0, 1)] == 1.0
    with pytest.raises(ValueError, match="at least one"):
        markov_graph(alternating, memory=0)


def test_a_semi_markov_graph_moves_only_when_the_phase_changes() -> None:
    graph = semi_markov_graph([[0, 0, 0, 1, 0, 0, 0, 0, 0, 1]])
    assert all(a != b for a, b in graph.moves)
    assert graph.moves == {(0, 1): 1.0, (1, 0): 1.0}
    assert graph.dwell[0] == pytest.approx((3.2, 4.0, 4.8))
    told = json.loads(json.dumps(graph.to_json()))
    assert told["nodes"][0]["dwell_rows"][1] == 4.0
    longer = semi_markov_graph([[0, 0, 1, 2, 2, 2, 0]], memory=2)
    assert longer.states == ((0, 1), (1, 2), (2, 0))
    assert longer.dwell[1] == (3.0, 3.0, 3.0)


@settings(max_examples=50)
@given(PHASES)
def test_moves_out_of_a_state_add_up(phases: list[int]) -> None:
    for graph in (markov_graph([phases]), semi_markov_graph([phases], memory=2)):
        leaving: dict[int, float] = {}
        for (state, _), share in graph.moves.items():
            leaving[state] = leaving.get(state, 0.0) + share
        assert all(total == pytest.approx(1) for total in leaving.values())


@settings(max_examples=50)
@given(PHASES, PHASES)
def test_likeness_is_symmetric_and_between_nothing_and_one(a: list[int], b: list[int]) -> None:
    assert similarity(a, b) == pytest.approx(similarity(b, a))
    assert -1e-9 <= similarity(a, b) <= 1
    assert similarity(a, a) == 1.0
    assert (similarity(a, b) == 1.0) == (run_lengths(a) == run_lengths(b))


def test_likeness_falls_with_what_differs() -> None:
    base = [0, 0, 1, 1, 1, 1]
    assert similarity(base, [0, 0, 1, 1]) == pytest.approx(0.75)
    assert similarity(base, [2, 2, 3, 3]) == 0.0
    assert similarity(base, []) == 0.0
