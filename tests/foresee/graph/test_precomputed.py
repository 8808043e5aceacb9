"""Shipped graphs: they are what a trace gives today, and need no PyTorch."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest

from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.opgraph import InputSpec, OpGraph
from presage.foresee.graph.torch_trace import trace
from presage.model.errors import ConfigError, GraphError
from presage.model.optimizers import OPTIMIZER_TABLE


def assert_same(one: OpGraph, two: OpGraph) -> None:
    assert one.operators == two.operators
    assert one.shapes == two.shapes
    assert one.dtypes == two.dtypes
    assert one.options == two.options
    assert (one.name, one.params, one.trainable) == (two.name, two.params, two.trainable)
    for column in ("kind", "phase", "macs", "read", "written", "weights", "edges"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column), column)
    np.testing.assert_array_equal(storages(one), storages(two))


def storages(graph: OpGraph) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Storages in an order that does not depend on how they were found."""
    t = graph.tensors
    rows = np.column_stack([t.role, t.born, t.died, t.power, t.scale]).astype(np.float64)
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize(
    ("name", "precision", "inference"),
    [
        ("resnet18", "fp32", False),
        ("bert-base", "amp", False),
        ("mlp", "amp", True),
        ("lstm-wikitext2", "fp32", True),
        ("dcgan", "fp32", False),
    ],
)
def test_a_shipped_graph_is_what_a_trace_gives(name: str, precision: str, inference: bool) -> None:
    entry = zoo.find(name)
    shipped = precomputed.read(entry, precision=precision, inference=inference)
    assert shipped is not None
    assert_same(
        shipped,
        trace(entry.build, entry.inputs, name=name, precision=precision, inference=inference),
    )


@pytest.mark.parametrize("name", ["neumf", "td3"])
@pytest.mark.parametrize("optimizer", OPTIMIZER_TABLE)
def test_another_optimizer_is_as_if_traced(name: str, optimizer: str) -> None:
    entry = zoo.find(name)
    changed = precomputed.read(entry, optimizer=optimizer)
    assert changed is not None
    assert_same(changed, trace(entry.build, entry.inputs, name=name, optimizer=optimizer))


def test_an_optimizer_can_be_changed_back() -> None:
    entry = zoo.find("mlp")
    adam = trace(entry.build, entry.inputs, name="mlp", optimizer="adam", precision="amp")
    sgd = trace(entry.build, entry.inputs, name="mlp", optimizer="sgd", precision="amp")
    assert_same(precomputed.with_optimizer(adam, "sgd"), sgd)
    assert_same(precomputed.with_optimizer(sgd, "adam"), adam)


def test_what_cannot_be_changed_says_so() -> None:
    entry = zoo.find("mlp")
    shipped = precomputed.read(entry, inference=True)
    assert shipped is not None
    with pytest.raises(GraphError, match="no optimizer"):
        precomputed.with_optimizer(shipped, "adam")
    with pytest.raises(ConfigError, match="unknown optimizer 'newt'"):
        precomputed.read(entry, optimizer="newt")
    bare = trace(entry.build, entry.inputs, optimizer="none")
    with pytest.raises(GraphError, match="trace it again"):
        precomputed.with_optimizer(bare, "adam")
    assert precomputed.read(entry, precision="bf16") is None


def test_every_entry_is_shipped_and_the_archive_is_small() -> None:
    archive = files("presage.foresee.graph") / "zoo_graphs.zip"
    assert len(archive.read_bytes()) < 3 << 20
    for name in zoo.names():
        for precision in ("fp32", "amp"):
            for inference in (False, True):
                graph = precomputed.read(zoo.find(name), precision=precision, inference=inference)
                assert graph is not None
                assert graph.name == name


def test_the_archive_is_the_same_when_written_twice(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("archives")
    for name in ("one", "two"):
        precomputed.write(folder / name, [zoo.find("mlp")])
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


def test_reading_needs_no_torch() -> None:
    code = (
        "import sys; from presage.foresee.graph.load import load_graph; "
        "graph = load_graph('zoo:resnet50', optimizer='adam'); "
        "assert 'torch' not in sys.modules; assert len(graph) > 400"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_input_of_another_size_is_traced() -> None:
    spec = InputSpec.parse("3x64x64")
    graph = trace(zoo.find("resnet18").build, spec)
    shipped = precomputed.read(zoo.find("resnet18"))
    assert shipped is not None
    assert graph.forward_macs() < shipped.forward_macs() / 5
