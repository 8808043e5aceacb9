"""Read a description of a cluster: `30x8`, a YAML node list, or a table of machines.

The forms that `--cluster` takes:

    30x8                  30 nodes of 8 GPUs, CPU and memory unlimited
    100x4:32c:128g        … each with 32 cores and 128 GiB of memory (either may be left out)
    100x4:32c:128g:A100   … and GPUs of type A100
    nodes.yaml            nodes: a list of {name, count, gpus, gpu_type, gpu_memory_gib, speed,
                          cpus, memory_gib, labels}; only name is needed, and `count: 3` makes
                          name-0, name-1, name-2
    machines.parquet      or .csv: openb's columns (sn, gpu; cpu_milli, memory_mib, model when
                          there) or Philly's machine list (machineId, number of GPUs)

What is not given is unlimited; nodes without GPUs stay. Nothing is guessed: an unknown key is
refused by its line. Nothing here schedules or touches the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field

from presage.edge import read_yaml
from presage.model.cluster import UNLIMITED, Device, Node
from presage.model.errors import ClusterError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Cluster", "describe", "read_cluster", "total_gpus"]

_UNIFORM = re.compile(r"(\d+)[xX×](\d+)((?::[^:]*)*)")
_MOST_NODES = 1_000_000
_MOST_GPUS = 1024
_MIB = 1024


class Cluster(tuple[Node, ...]):
    """The nodes of a cluster, in order: of any form that `--cluster` takes, or as values.

    >>> Cluster("30x8")
    Cluster(30 nodes, 240 GPUs)
    """

    __slots__ = ()

    def __new__(cls, spec: str | PathLike[str] | Iterable[Node]) -> Self:
        """Raises `ClusterError`, one line, when it makes no sense."""
        if isinstance(spec, str | PathLike):
            return super().__new__(cls, read_cluster(spec))
        nodes = list(spec) if isinstance(spec, Iterable) else [spec]
        if not all(isinstance(node, Node) for node in nodes):
            raise ClusterError(f"a cluster is a size such as 30x8, a file or nodes, not {spec!r}")
        return super().__new__(cls, _checked(nodes, "of nodes"))

    @property
    def gpus(self) -> int:
        """How many devices the nodes have."""
        return total_gpus(self)

    def __repr__(self) -> str:
        return f"Cluster({describe(self)})"


def read_cluster(spec: str | PathLike[str]) -> tuple[Node, ...]:
    """The nodes of a cluster, in order; `ClusterError`, one line, when it makes no sense."""
    text = fspath(spec)
    uniform = _UNIFORM.fullmatch(text.strip())
    if uniform:
        return _uniform(text, int(uniform[1]), int(uniform[2]), uniform[3].split(":")[1:])
    path = Path(text)
    if not path.is_file():
        raise ClusterError(
            f"cluster {text!r} is neither a size such as 30x8 or 100x4:32c:128g nor a file"
        )
    nodes = _read_yaml(path) if path.suffix in (".yaml", ".yml") else _read_table(path)
    return _checked(nodes, path.name)


def total_gpus(nodes: Iterable[Node]) -> int:
    """How many devices the nodes have."""
    return sum(len(node.devices) for node in nodes)


def describe(nodes: tuple[Node, ...]) -> str:
    """A cluster in a few words: '30 nodes, 240 GPUs'."""
    types = sorted({device.type for node in nodes for device in node.devices} - {"gpu"})
    named = f" ({', '.join(types[:6])}{', …' if len(types) > 6 else ''})" if types else ""
    return f"{len(nodes):,} nodes, {total_gpus(nodes):,} GPUs{named}"


class _NodeSpec(BaseModel):
    """One entry of the YAML list."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(min_length=1, max_length=200)
    count: int | None = Field(default=None, ge=1, le=_MOST_NODES)
    gpus: int = Field(default=0, ge=0, le=_MOST_GPUS)
    gpu_type: str = Field(default="gpu", min_length=1)
    gpu_memory_gib: float | None = Field(default=None, gt=0, le=1e6)
    speed: float = Field(default=1.0, gt=0, le=1e6)
    cpus: float | None = Field(default=None, ge=0, le=1e6)
    memory_gib: float | None = Field(default=None, ge=0, le=1e9)
    labels: dict[str, str] = Field(default_factory=dict)

    def nodes(self) -> list[Node]:
        memory = UNLIMITED if self.gpu_memory_gib is None else round(self.gpu_memory_gib * _MIB)
        devices = (Device(self.gpu_type, memory, self.speed),) * self.gpus
        cpus = UNLIMITED if self.cpus is None else round(self.cpus * 1000)
        memory = UNLIMITED if self.memory_gib is None else round(self.memory_gib * _MIB)
        one = self.count is None
        names = (
            [self.name] if one else [f"{self.name}-{index}" for index in range(self.count or 1)]
        )
        return [Node(name, devices, cpus, memory, dict(self.labels)) for name in names]


class _ClusterSpec(BaseModel):
    """The YAML file."""

    model_config = ConfigDict(extra="forbid")

    nodes: list[_NodeSpec] = Field(min_length=1)


def _uniform(text: str, count: int, gpus: int, extras: list[str]) -> tuple[Node, ...]:
    if not 1 <= count <= _MOST_NODES or gpus > _MOST_GPUS:
        raise ClusterError(
            f"cluster {text!r}: give 1 to {_MOST_NODES:,} nodes of at most {_MOST_GPUS} GPUs"
        )
    given: dict[str, int | str] = {}
    for extra in extras:
        amount = re.fullmatch(r"(\d{1,7})([cg])", extra)
        kind = amount[2] if amount else "type"
        if kind in given or not (amount or re.fullmatch(r"[A-Za-z][\w.-]*", extra)):
            raise ClusterError(
                f"cluster {text!r}: cannot read {extra!r}; write cores as 32c, memory in GiB as "
                "128g, a GPU type as A100, each once"
            )
        given[kind] = int(amount[1]) if amount else extra
    devices = (Device(str(given.get("type", "gpu"))),) * gpus
    cpus = int(given["c"]) * 1000 if "c" in given else UNLIMITED
    memory = int(given["g"]) * _MIB if "g" in given else UNLIMITED
    return tuple(Node(f"node-{index}", devices, cpus, memory) for index in range(count))


def _read_yaml(path: Path) -> list[Node]:
    spec = read_yaml(path, _ClusterSpec, ClusterError)
    total = sum(entry.count or 1 for entry in spec.nodes)
    if total > _MOST_NODES:
        raise ClusterError(f"cluster {path.name}: {total:,} nodes; at most {_MOST_NODES:,}")
    return [node for entry in spec.nodes for node in entry.nodes()]


def _read_table(path: Path) -> list[Node]:
    import polars as pl  # a cluster is mostly written as 30x8, and this takes long to import

    try:
        if path.suffix == ".parquet":
            table = pl.read_parquet(path, glob=False)
        else:
            table = pl.read_csv(path, infer_schema_length=None, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        why = str(error).strip().splitlines()[0][:160]
        raise ClusterError(f"cluster {path.name} cannot be read as a table: {why}") from None
    if {"machineId", "number of GPUs"} <= set(table.columns):
        table = table.rename({"machineId": "sn", "number of GPUs": "gpu"})
        table = table.select("sn", "gpu")
    elif not {"sn", "gpu"} <= set(table.columns):
        raise ClusterError(
            f"cluster {path.name} needs the columns sn, gpu (and cpu_milli, memory_mib, model) or "
            f"machineId, number of GPUs; it has {', '.join(table.columns[:12])}"
        )
    return _machines(path, table)


def _machines(path: Path, table: pl.DataFrame) -> list[Node]:
    import polars as pl

    for name in ("gpu", "cpu_milli", "memory_mib", "model"):
        if name not in table.columns:
            table = table.with_columns(pl.lit(None).alias(name))
        elif name != "model" and table.schema[name] == pl.String:  # -1: refused below, by its row
            number = pl.col(name).cast(pl.Float64, strict=False)
            bad = number.is_null() & pl.col(name).is_not_null()
            table = table.with_columns(pl.when(bad).then(-1.0).otherwise(number).alias(name))
    rows = table.select("sn", "gpu", "cpu_milli", "memory_mib", "model").iter_rows()
    nodes = []
    for index, (name, gpus, cpu, memory, model) in enumerate(rows, start=1):
        amounts = [UNLIMITED if amount is None else amount for amount in (cpu, memory)]
        whole = all(isinstance(n, int | float) and n == n // 1 >= 0 for n in (gpus, *amounts))
        if name is None or not whole or gpus > _MOST_GPUS:
            raise ClusterError(
                f"cluster {path.name}: row {index} needs a name, and whole numbers of GPUs, CPU "
                "and memory that are not negative"
            )
        devices = (Device("gpu" if model is None else str(model)),) * int(gpus)
        nodes.append(Node(str(name), devices, int(amounts[0]), int(amounts[1])))
    return nodes


def _checked(nodes: list[Node], name: str) -> tuple[Node, ...]:
    if not nodes:
        raise ClusterError(f"cluster {name} has no nodes")
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise ClusterError(f"cluster {name}: two nodes are named {node.name}")
        seen.add(node.name)
    return tuple(nodes)
