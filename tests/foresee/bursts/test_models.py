"""What burst models learn: grouping and counts by hand, networks equal in both libraries, the
best kind chosen on families left out, transfer, and bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presage.foresee.bursts import BurstNet, GnnKind
from presage.foresee.bursts._passes import forward
from presage.foresee.bursts.bundles import BurstBundle, errors_of, fit_bundle
from presage.foresee.bursts.communities import fluid_communities, largest_component
from presage.foresee.bursts.forest import Rhythm
from presage.foresee.bursts.graphs import SUMMARY, GraphInput, group_count, grouped, summary
from presage.foresee.bursts.models import ForestModel, ModelKind, NetModel, TreeModel
from presage.foresee.bursts.rows import MeasuredSetting, noise_of, read_runs
from presage.foresee.bursts.settings import Setting
from presage.foresee.bursts.training import TorchOps, TrainOptions, starting_weights
from presage.foresee.graph import zoo
from presage.foresee.graph.load import load_graph
from presage.model.errors import ConfigError, UserError
from presage.telemetry.bursts import TARGETS
from tests.foresee.bursts.test_net import graphs

QUICK = TrainOptions(epochs=12)


def cases(count: int = 24, seed: int = 0) -> tuple[list[GraphInput], Any, list[str]]:
    """Graphs of three families whose labels follow the size of their tensors."""
    chance = np.random.default_rng(seed)
    inputs, labels = [], []
    for at in range(count):
        size = chance.uniform(0, 8)
        x, adj = graphs(1, 4 if at % 2 else 8, seed + at)
        told = np.full(len(SUMMARY), size) + 0.01 * chance.random(len(SUMMARY))
        inputs.append(GraphInput(x[0] * np.exp(size), adj[0], told))
        labels.append(np.exp(0.5 * size) * np.arange(1, 13))
    return inputs, np.array(labels), [f"family{at % 3}" for at in range(count)]


def measured(
    count: int = 24, setting: str = "W2/1gbit"
) -> tuple[MeasuredSetting, list[GraphInput]]:
    inputs, labels, families = cases(count)
    works = [{"model": "mlp", "batch": at + 1} for at in range(count)]
    repeats = [each[None] for each in labels]
    return MeasuredSetting(Setting.parse(setting), works, families, labels, repeats), inputs


def test_grouping_by_hand() -> None:
    """A path of four, a pair and a loner: the path is kept, and two groups of it are joined."""
    edges = np.array([[0, 1], [1, 2], [2, 3], [4, 5]])
    sizes, often = np.array([1.0, 2, 4, 8, 99, 99, 99]), np.full(7, 0.25)
    x, adj = grouped(sizes, often, edges, groups=lambda nodes: 2)
    np.testing.assert_array_equal(adj, [[0, 1], [1, 0]])
    np.testing.assert_allclose(x.sum(0), [15, 4, 1])
    assert sorted(x[:, 1]) in ([1, 3], [2, 2])  # communities of a path are stretches of it
    assert x[np.argmax(x[:, 0]), 0] in (12, 14, 8)
    one, alone = grouped(sizes, often, edges, groups=lambda nodes: 1)
    np.testing.assert_allclose(one, [[15, 4, 1]])
    np.testing.assert_array_equal(alone, [[0]])


def test_as_many_groups_as_nodes_leave_the_graph_as_it_is() -> None:
    edges = np.array([[0, 1], [1, 2], [2, 0], [2, 3]])
    x, adj = grouped(np.array([1.0, 2, 3, 4]), np.ones(4), edges, groups=lambda nodes: 4)
    assert sorted(x[:, 0]) == [1, 2, 3, 4]
    assert sorted(adj.sum(0)) == [1, 2, 2, 3]


@pytest.mark.parametrize(("nodes", "groups"), [(3, 3), (12, 8), (140, 16), (1341, 20), (9000, 28)])
def test_groups_grow_with_the_logarithm(nodes: int, groups: int) -> None:
    assert group_count(nodes) == groups


@pytest.mark.parametrize("kind", GnnKind)
def test_torch_and_arrays_answer_alike(kind: GnnKind) -> None:
    import torch

    weights = starting_weights(kind)
    x, adj = graphs(3, 10)
    ours = BurstNet.from_arrays(weights, kind).forward(x, adj)
    tensors = {k: torch.tensor(v, dtype=torch.float32) for k, v in weights.items()}
    nodes, links = (torch.tensor(each, dtype=torch.float32) for each in (x, adj))
    theirs = forward(TorchOps(), tensors, nodes, links, kind).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", GnnKind)
def test_a_network_learns(kind: GnnKind) -> None:
    inputs, labels, _ = cases(16)
    fitted = NetModel(kind, TrainOptions(epochs=40)).fit(inputs, labels)
    median = np.median(labels, axis=0)
    before = errors_of(labels, np.tile(median, (len(labels), 1)))["score"]
    assert errors_of(labels, fitted.predict(inputs))["score"] < 0.8 * before


def test_a_transfer_trains_only_what_it_may() -> None:
    inputs, labels, _ = cases(16)
    base = NetModel(GnnKind.GCN, QUICK).fit(inputs, labels)
    moved = NetModel(GnnKind.GCN, QUICK, base=base).fit(inputs, 3 * labels)
    old, new = base.net_.arrays, moved.net_.arrays
    changed = {name for name in new if not np.allclose(new[name], old.get(name, np.inf))}
    assert changed == {
        name for name in new if name.startswith(("conv_layers.2.", "graph_read_out.mlp."))
    }
    start = old["conv_layers.1.W"]
    assert 0 < np.abs(new["conv_layers.2.W"] - start).max() < 0.5  # it began there


def test_the_best_kind_is_chosen_on_families_left_out(tmp_path: Path) -> None:
    rows, inputs = measured()
    bundle = fit_bundle(
        rows, inputs, "2026-01-01", [ModelKind.FOREST, ModelKind.GCN], options=QUICK
    )
    scores = {kind: each["score"] for kind, each in bundle.card["errors"].items()}
    assert set(scores) == {"constant", "forest", "gcn"}
    assert bundle.card["model"] == min(("forest", "gcn"), key=lambda kind: scores[kind])
    bundle.save(tmp_path / "one.npz")
    again = BurstBundle.load(tmp_path / "one.npz")
    spans = again.predict_interval(inputs)
    assert spans.shape == (24, 12, 3)
    assert (np.diff(spans, axis=2) >= 0).all()
    np.testing.assert_allclose(spans, bundle.predict_interval(inputs))
    inside = (spans[..., 0] <= rows.labels) & (rows.labels <= spans[..., 2])
    assert inside.mean() > 0.8


def test_a_bundle_of_trees_cannot_be_transferred() -> None:
    rows, inputs = measured()
    fitted = TreeModel(trees=2).fit(inputs, rows.labels)
    trees = BurstBundle(rows.setting, fitted, [], {})
    with pytest.raises(UserError, match="only networks can be transferred"):
        fit_bundle(rows, inputs, "2026-01-01", base=trees)
    few = MeasuredSetting(rows.setting, rows.workloads, ["a"] * 24, rows.labels, rows.repeats)
    with pytest.raises(UserError, match="1 model families: 3 at least"):
        fit_bundle(few, inputs, "2026-01-01")


def test_trees_as_arrays_answer_alike() -> None:
    inputs, labels, _ = cases()
    fitted = TreeModel(trees=20).fit(inputs, labels)
    again = TreeModel.from_arrays(fitted.to_arrays())
    np.testing.assert_allclose(again.predict(inputs), fitted.predict(inputs))


def test_a_rhythm_follows_from_sizes() -> None:
    """Steps and computing that are sums of sizes are found again; bursts of sent carry 4 bytes for
    each parameter, in two periods of a step where there are three buckets."""
    rows = np.zeros((6, len(SUMMARY)))
    trained, macs = np.linspace(5e6, 1e7, 6), np.array([3.0, 1, 2, 6, 4, 5]) * 1e8
    for name, values in (("trained", trained), ("macs_conv", macs), ("buckets", np.full(6, 3))):
        rows[:, SUMMARY.index(name)] = np.log1p(values)
    busy, steps = 200 * macs / 1e9, 200 * macs / 1e9 + 100 * trained / 1e6
    sent = 40 * trained / 1e6
    pulse = [np.full(6, 50.0), 2 * busy, steps - 2 * busy]
    talk = [np.full(6, 100.0), sent / 2, (steps - sent) / 2]
    labels = np.column_stack([*pulse, *np.zeros((3, 6)), *talk, *talk])
    shared = Rhythm.fit(rows, labels, steps, buckets=True)
    np.testing.assert_allclose(shared(rows)[0], labels, rtol=1e-6, atol=1e-6)
    alone = Rhythm.fit(rows, labels, np.full(6, np.nan), buckets=False)(rows)[0]
    np.testing.assert_allclose(alone[:, :3], labels[:, :3], rtol=1e-6)  # steps are its periods


def test_a_forest_answers_nothing_where_most_had_nothing() -> None:
    inputs, labels, _ = cases(40)
    labels[::5, 3:6] *= 50
    labels[np.arange(40) % 5 > 0, 3:6] = 0
    said = ForestModel(buckets=True).fit(inputs, labels).predict(inputs)
    np.testing.assert_array_equal(said[:, 3:6], 0)
    off = np.abs(said - labels)[:, 6:].mean(0) / labels[:, 6:].mean(0)
    assert off.max() < 0.2


def test_a_forest_as_arrays_answers_alike() -> None:
    inputs, labels, _ = cases()
    fitted = ForestModel(buckets=False).fit(inputs, labels)
    arrays = fitted.to_arrays()
    again = ForestModel.from_arrays(arrays)
    np.testing.assert_array_equal(again.predict(inputs), fitted.predict(inputs))
    assert not again.buckets
    with pytest.raises(UserError, match="contradict each other"):
        ForestModel.from_arrays(arrays | {"leaves": arrays["leaves"][:, 1:]})
    with pytest.raises(UserError, match="no weights of sizes"):
        ForestModel.from_arrays(arrays | {"rhythm.bursts": np.zeros(3)})


@pytest.mark.parametrize(("model", "buckets"), [("mlp", 2), ("resnet18-cifar10", 3)])
def test_slopes_are_counted_in_the_buckets_of_pytorch(model: str, buckets: int) -> None:
    from torch import distributed

    learned = list(zoo.find(model).build().parameters())
    theirs = distributed._compute_bucket_assignment_by_size(learned, [1 << 20, 25 << 20])[0]
    told = summary(load_graph(f"zoo:{model}"), 2)[SUMMARY.index("buckets")]
    assert len(theirs) == buckets
    assert np.expm1(told) == pytest.approx(buckets)


def line(model: str, setting: str, value: float | None, **more: Any) -> str:
    run: dict[str, Any] = {"workload": {"model": model, "batch": 2}, "setting": setting, **more}
    if value is not None:
        run["labels"] = {name: value + at for at, name in enumerate(TARGETS)}
    return json.dumps(run)


def test_runs_are_read_and_their_noise_told(tmp_path: Path) -> None:
    lines = [
        line("mlp", "W2/1gbit", 10.0),
        line("mlp", "W2/1gbit", 12.0, repeat=1),
        line("dqn", "W2/1gbit", 5.0),
        line("dqn", "W2/100mbit", 7.0),
        line("td3", "W2/1gbit", None, failed="x"),
        '{"workload": {"model": "mlp", "ba',
    ]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    rows = read_runs(tmp_path, "w2/1gbit")
    assert rows.families == ["mlp", "rl"]
    np.testing.assert_allclose(rows.labels[:, 0], [11.0, 5.0])
    broken = {name: 9.0 for name in TARGETS} | {"sent_burst_mib_s": 260.0}
    lines.append(
        line("td3", "W2/1gbit", None, labels=broken)
    )  # more than twice what the link carries
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    assert read_runs(tmp_path, "W2/1gbit").families == ["mlp", "rl"]
    noise = noise_of(rows)
    assert noise is not None
    assert noise[0] == pytest.approx(2**0.5 / 11)  # |10 − 11| · √2, over 11
    with pytest.raises(UserError, match="has no run of W4/none"):
        read_runs(tmp_path, "W4/none")
    with pytest.raises(UserError, match=r"has no runs\.jsonl"):
        read_runs(tmp_path / "nowhere", "W4/none")


@pytest.mark.parametrize("text", ["W2/1gbit", "P2W4/100mbit", "P1W3/none/async"])
def test_a_setting_reads_as_it_is_written(text: str) -> None:
    assert str(Setting.parse(text)) == text
    assert Setting.parse(text.lower()) == Setting.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2W/1gbit", "is no setting"),
        ("W0/1gbit", "is no setting"),
        ("W2/5gbit", "the network is one of"),
        ("W2/1gbit/async", "always in step"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Setting.parse(text)


def test_communities_are_those_of_networkx() -> None:
    """The same groups in the same order, for the same neighbours and seed."""
    import networkx as nx  # type: ignore[import-untyped]  # ships none
    from networkx.algorithms.community import asyn_fluidc  # type: ignore[import-untyped]

    for seed in range(12):
        drawn = nx.connected_watts_strogatz_graph(30 + 9 * seed, 4, 0.2, seed=seed)
        theirs = [sorted(each) for each in asyn_fluidc(drawn, 4 + seed, seed=seed)]
        ours = fluid_communities([list(drawn[node]) for node in drawn], 4 + seed, seed)
        assert ours == theirs


def test_the_largest_component_is_found() -> None:
    parts = [[1], [0], [3], [2, 4], [3], []]
    assert largest_component(parts) == [2, 3, 4]
    assert largest_component([[1], [0], [3], [2]]) == [0, 1]
