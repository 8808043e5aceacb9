"""How long one prediction of bursts takes once the graph is there: by the forest that is
shipped, and by the network, whose graph has to be grouped first.

    python -m benchmarks.bursts_speed

Weights are drawn, not fitted; they change no time. Target: 50 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from presage.foresee.bursts import BurstNet, GnnKind
from presage.foresee.bursts.graphs import GraphInput, graph_input, summary
from presage.foresee.bursts.models import ForestModel
from presage.foresee.bursts.training import starting_weights
from presage.foresee.graph.load import load_graph
from presage.foresee.graph.opgraph import OpGraph

MODELS = ("mlp", "squeezenet1-1", "resnet50", "bert-base", "densenet121", "densenet201")


def best_ms(work: Callable[[], object], times: int = 7) -> tuple[float, float]:
    """The best and the median of so many times."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(1e3 * (time.perf_counter() - start))
    return min(spent), float(np.median(spent))


def _by_forest(forest: ForestModel, graph: OpGraph, told: GraphInput) -> object:
    return summary(graph, 16), forest.predict([told])


def main() -> None:
    net = BurstNet.from_arrays(starting_weights(GnnKind.GCN))
    graphs = {name: load_graph(f"zoo:{name}") for name in MODELS}
    inputs = {name: graph_input(graph, 16) for name, graph in graphs.items()}
    many = [told for told in inputs.values() for _ in range(32)]  # as many as were measured
    labels = np.random.default_rng(0).random((len(many), 12)) * 100
    forest = ForestModel(buckets=True).fit(many, labels)
    print("ms, best (median): summary and forest; grouping; network")
    for name, graph in graphs.items():
        told = inputs[name]

        parts: tuple[Callable[[], object], ...] = (
            partial(_by_forest, forest, graph, told),
            partial(graph_input, graph, 16),
            partial(net.forward, told.x[None], told.adj[None]),
        )
        cells = "; ".join(f"{a:.1f} ({b:.1f})" for a, b in [best_ms(part) for part in parts])
        print(f"{name}, {len(graph):,} operators, {len(told.x)} groups: {cells}")


if __name__ == "__main__":
    main()
