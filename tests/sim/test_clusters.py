"""Descriptions of clusters: what each form means, and one clear line for what makes no sense."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from presage.model.cluster import UNLIMITED, Device, Node
from presage.model.errors import ClusterError
from presage.sim.clusters import describe, read_cluster, total_gpus


def test_a_size() -> None:
    nodes = read_cluster("30x8")
    assert [node.name for node in nodes] == [f"node-{index}" for index in range(30)]
    assert set(nodes) == {Node(node.name, (Device(),) * 8) for node in nodes}
    assert nodes[0].cpu_milli == nodes[0].memory_mib == UNLIMITED
    assert total_gpus(nodes) == 240
    assert describe(nodes) == "30 nodes, 240 GPUs"


@pytest.mark.parametrize(
    ("spec", "cpu_milli", "memory_mib", "gpu_type"),
    [
        ("2x4:32c:128g", 32_000, 131_072, "gpu"),
        ("2x4:128g:32c:A100", 32_000, 131_072, "A100"),
        ("2x4:32c", 32_000, UNLIMITED, "gpu"),
        ("2X4:V100-32", UNLIMITED, UNLIMITED, "V100-32"),
    ],
)
def test_a_size_with_extras(spec: str, cpu_milli: int, memory_mib: int, gpu_type: str) -> None:
    nodes = read_cluster(spec)
    assert len(nodes) == 2
    for node in nodes:
        assert node.devices == (Device(gpu_type),) * 4
        assert (node.cpu_milli, node.memory_mib) == (cpu_milli, memory_mib)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("0x8", "give 1 to 1,000,000 nodes"),
        ("99999999999x8", "give 1 to 1,000,000 nodes"),
        ("8x9999", "at most 1024 GPUs"),
        ("30x", "neither a size such as 30x8"),
        ("nodes.yaml", "nor a file"),
        ("", "nor a file"),
        ("3x8:", "cannot read ''"),
        ("3x8:4z", "cannot read '4z'"),
        ("3x8:4c:5c", "cannot read '5c'"),
        ("3x8:A:B", "cannot read 'B'"),
    ],
)
def test_a_bad_size(spec: str, says: str) -> None:
    with pytest.raises(ClusterError) as refused:
        read_cluster(spec)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_yaml_list(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(
        """
        nodes:
          - name: big
            count: 2
            gpus: 8
            gpu_type: A100
            gpu_memory_gib: 80
            speed: 2
            cpus: 64
            memory_gib: 512
            labels: {rack: r1, area: 7}
          - {name: login}
        """
    )
    nodes = read_cluster(path)
    devices = (Device("A100", 81_920, 2.0),) * 8
    labels = {"rack": "r1", "area": "7"}
    assert nodes == (
        Node("big-0", devices, 64_000, 524_288, labels),
        Node("big-1", devices, 64_000, 524_288, labels),
        Node("login"),
    )
    assert describe(nodes) == "3 nodes, 16 GPUs (A100)"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "nodes:\n  - name: a\n    gpuz: 4\n",
            "line 3: nodes.0.gpuz: unknown key; did you mean 'gpus'?",
        ),
        (
            "nodes:\n  - {name: a, qqq: 4}\n",
            "line 2: nodes.0.qqq: unknown key; known keys: name, count",
        ),
        ("node:\n  - name: a\n", "line 1: node: unknown key; did you mean 'nodes'?"),
        ("nodes:\n  - name: a\n   gpus: 4\n", "line 3: broken YAML"),
        ("nodes: [\n", "line 2: broken YAML"),
        ("\tnodes: []\n", "line 1: broken YAML"),
        ("nodes: !!python/object/apply:os.getcwd []\n", "line 1: broken YAML"),
        ("- a\n", "line 1: write a mapping with the key nodes"),
        ("", "line 1: write a mapping with the key nodes"),
        ("nodes: []\n", "line 1: nodes: list should have at least 1 item"),
        ("nodes:\n  - 5\n", "line 2: nodes.0: write a mapping with keys such as name, count"),
        ("nodes:\n  - gpus: 5\n", "line 2: nodes.0.name: field required"),
        ("nodes:\n  - name: a\n    gpus: -1\n", "line 3: nodes.0.gpus: input should be greater"),
        ("nodes:\n  - name: a\n    speed: 0\n", "line 3: nodes.0.speed: input should be greater"),
        ("nodes:\n  - name: a\n    count: 0\n", "line 3: nodes.0.count: input should be greater"),
        ("nodes:\n  - name: a\n    gpus: 1\n    gpus: 2\n", "line 4: key gpus is there twice"),
        ("nodes:\n  - name: a\n  - name: a\n", "two nodes are named a"),
        ("nodes:\n" + "  - {name: a, count: 600000}\n" * 2, "1,200,000 nodes; at most 1,000,000"),
        ("[" * 1500, "cannot be read"),
    ],
)
def test_a_bad_yaml_list(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "nodes.yml"
    path.write_text(text)
    with pytest.raises(ClusterError) as refused:
        read_cluster(path)
    assert says in str(refused.value)
    assert "nodes.yml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_openb_nodes(shared_data: Path) -> None:
    nodes = read_cluster(shared_data / "traces/openb_nodes_all.parquet")
    assert (len(nodes), total_gpus(nodes)) == (1523, 6212)
    assert sum(not node.devices for node in nodes) == 310
    first = next(node for node in nodes if node.devices)
    assert first.cpu_milli < UNLIMITED
    assert first.memory_mib < UNLIMITED
    types = {device.type for node in nodes for device in node.devices}
    assert types == {"A10", "G2", "G3", "P100", "T4", "V100M16", "V100M32"}


def test_philly_machines(shared_data: Path) -> None:
    nodes = read_cluster(str(shared_data / "traces/philly_machine_list.parquet"))
    assert len(nodes) == 552
    assert sum(not node.devices for node in nodes) == 13
    assert nodes[0] == Node("m0", (Device(),) * 8)


def test_a_csv_table(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,gpu,model,memory_mib\na,2,T4,1024\n7,0,,\n")
    assert read_cluster(path) == (
        Node("a", (Device("T4"),) * 2, UNLIMITED, 1024),
        Node("7"),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read as a table"),
        ("sn,gpu\n", "has no nodes"),
        ("name,gpus\na,1\n", "needs the columns sn, gpu"),
        ("sn,gpu\na,1\nb,-1\n", "row 2 needs a name"),
        ("sn,gpu\na,1\nb,x\n", "row 2 needs a name"),
        ("sn,gpu\na,1\nb,\n", "row 2 needs a name"),
        ("sn,gpu,cpu_milli\na,1,many\n", "row 1 needs a name"),
        ("sn,gpu\na,1\na,1\n", "two nodes are named a"),
    ],
)
def test_a_bad_table(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(ClusterError, match=says):
        read_cluster(path)


def test_a_table_that_is_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "nodes.parquet"
    path.write_text("not Parquet at all")
    with pytest.raises(ClusterError, match="cannot be read as a table"):
        read_cluster(path)
    pl.DataFrame({"sn": [], "gpu": []}).write_parquet(path)
    with pytest.raises(ClusterError, match="has no nodes"):
        read_cluster(path)
