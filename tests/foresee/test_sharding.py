"""Sharding on a graph that knows no blocks: a traced network of the zoo."""

from __future__ import annotations

import pytest

from presage.foresee.allocator import live_peak
from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.opgraph import ROLES, OpGraph
from presage.foresee.sharding import communicator_bytes, guess_units, shard
from presage.model.setup import Setup


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    found = precomputed.read(zoo.find("resnet50"), optimizer="adam", precision="fp32")
    assert found is not None
    return found


def _role(graph: OpGraph, role: str) -> float:
    t = graph.tensors
    return float(t.scale[t.role == ROLES.index(role)].sum())


def _setup(way: str, gpus: int = 4) -> Setup:
    return Setup.make(optimizer="adam", gpus=gpus, parallel=way)


def test_units_cover_all_weights(graph: OpGraph) -> None:
    units = guess_units(graph)
    assert 8 <= len(units) <= 40
    assert sum(u.weight_bytes for u in units) == pytest.approx(_role(graph, "weight"), rel=0.02)
    assert all(u.forward < u.forward_end <= u.backward < u.backward_end for u in units)


def test_each_way_divides_its_part(graph: OpGraph) -> None:
    weights, state, gradient = (_role(graph, r) for r in ("weight", "state", "gradient"))
    one = shard(graph, _setup("zero1"))
    assert _role(one, "state") == pytest.approx(state / 4)
    assert _role(one, "weight") == weights
    two = shard(graph, _setup("zero2"))
    assert _role(two, "gradient") == pytest.approx(gradient / 4)
    full = shard(graph, _setup("fsdp"))
    assert _role(full, "weight") == pytest.approx(weights / 4)
    assert live_peak(full, 1).bytes < live_peak(one, 1).bytes < live_peak(graph, 1).bytes


def test_fsdp_keeps_whole_gradients_between_micro_batches(graph: OpGraph) -> None:
    gradient = _role(graph, "gradient")
    several = {"optimizer": "adam", "gpus": 4, "accumulate": 2}
    whole = shard(graph, Setup.make(parallel="fsdp", **several))
    assert _role(whole, "gradient") == gradient
    synced = shard(graph, Setup.make(parallel="fsdp,sync", **several))
    assert _role(synced, "gradient") == pytest.approx(gradient / 4)
    assert _role(shard(graph, _setup("fsdp")), "gradient") == pytest.approx(gradient / 4)


def test_ddp_holds_buckets_of_all_gradients(graph: OpGraph) -> None:
    more = shard(graph, _setup("ddp"))
    extra = _role(more, "gradient") - _role(graph, "gradient")
    assert extra == pytest.approx(graph.trainable * 4, rel=0.01)


def test_one_rank_and_inference_stay_as_they_are(graph: OpGraph) -> None:
    assert shard(graph, Setup.make(optimizer="adam")) is graph
    assert communicator_bytes(Setup.make()) == 0
    several = Setup.make(gpus=8, parallel="zero1,tp=2,pp=2")
    assert communicator_bytes(several) > communicator_bytes(Setup.make(gpus=8, parallel="fsdp"))
