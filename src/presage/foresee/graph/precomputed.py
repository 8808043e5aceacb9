"""Graphs of the zoo that were traced beforehand, so that using them needs no PyTorch.

`python -m presage.foresee.graph.precomputed` traces the zoo again and writes the archive; do it
after a change to the tracer, and with the names of entries that are new or changed after a change
to the zoo: the others stay as they are. Training is kept with the optimizer `sgd`, and
`with_optimizer` changes that without a trace.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presage.foresee.graph import zoo
from presage.foresee.graph.opgraph import KINDS, PHASES, ROLES, OpGraph, Tensors
from presage.foresee.graph.updates import update_storages, update_traffic
from presage.model.errors import GraphError
from presage.model.optimizers import OptimizerMemory, optimizer_memory

__all__ = ["read", "with_optimizer", "write"]

Floats = npt.NDArray[np.float64]

_ARCHIVE = "zoo_graphs.zip"
_VARIANTS = {  # name: precision, inference
    "train-fp32": ("fp32", False),
    "train-amp": ("amp", False),
    "infer-fp32": ("fp32", True),
    "infer-amp": ("amp", True),
}

_ALIKE = {"tf32": "fp32", "amp-bf16": "amp", "amp_bf16": "amp"}
"""Precisions in which the same tensors live as in another; other units compute them."""


def read(
    entry: zoo.ZooEntry,
    *,
    optimizer: str = "sgd",
    precision: str = "fp32",
    inference: bool = False,
) -> OpGraph | None:
    """The graph of a zoo entry, or None if this variant was not traced beforehand."""
    optimizer = optimizer_memory(optimizer).name
    same = _ALIKE.get(precision, precision)
    wanted = [name for name, variant in _VARIANTS.items() if variant == (same, inference)]
    archive = files("presage.foresee.graph") / _ARCHIVE
    if not wanted or not archive.is_file():
        return None
    with archive.open("rb") as file, zipfile.ZipFile(file) as members:
        try:
            data = members.read(f"{entry.name}/{wanted[0]}")
        except KeyError:
            return None
    graph = OpGraph.from_bytes(data)
    graph = replace(graph, options=graph.options | {"precision": precision})
    return graph if inference else with_optimizer(graph, optimizer)


def with_optimizer(graph: OpGraph, optimizer: str) -> OpGraph:
    """The same training step with another optimizer; equal to a trace with that optimizer."""
    optimizer = optimizer_memory(optimizer).name
    if graph.options["inference"]:
        raise GraphError("a graph of inference has no optimizer")
    if graph.options["optimizer"] == optimizer:
        return graph
    if graph.options["optimizer"] == "none":
        raise GraphError("a graph without an optimizer cannot be given one: trace it again")
    entry = optimizer_memory(optimizer)
    rows = int((graph.kind != KINDS.index("update")).sum())
    total = float(graph.trainable)
    traffic = np.array(update_traffic(entry, total)).reshape(-1, 2)
    passes = len(traffic)
    nothing = np.zeros((passes, graph.macs.shape[1]))
    read, written = nothing.copy(), nothing.copy()
    read[:, 0], written[:, 0] = traffic.T
    return replace(
        graph,
        operators=graph.operators[:rows] + ("optimizer",) * passes,
        kind=np.append(graph.kind[:rows], [KINDS.index("update")] * passes).astype(np.int64),
        phase=np.append(graph.phase[:rows], [PHASES.index("optimizer")] * passes).astype(np.int64),
        shapes=graph.shapes[:rows] + ((graph.trainable,),) * passes,
        dtypes=graph.dtypes[:rows] + ("float32",) * passes,
        macs=np.vstack([graph.macs[:rows], nothing]),
        read=np.vstack([graph.read[:rows], read]),
        written=np.vstack([graph.written[:rows], written]),
        weights=np.append(graph.weights[:rows], [total] * passes),
        tensors=_tensors(graph, rows, rows + passes, entry),
        options=graph.options | {"optimizer": optimizer},
    )


def _tensors(graph: OpGraph, rows: int, end: int, optimizer: OptimizerMemory) -> Tensors:
    """The storages without those of the old optimizer, and with those of the new one."""
    old = graph.tensors
    stays = (old.role != ROLES.index("state")) & (old.born < rows)
    lasts = old.died[stays] == len(graph)
    sizes = _trained_bytes(graph)
    each = 2 if graph.options["precision"] in ("bf16", "fp16", "fp8") else 4
    states, made = update_storages(optimizer, sizes, sizes / each)
    count = len(states) + len(made)
    return Tensors(
        born=np.concatenate(
            [old.born[stays], np.full(len(states), -1), np.full(len(made), rows)]
        ).astype(np.int64),
        died=np.concatenate(
            [
                np.where(lasts, end, np.minimum(old.died[stays], end)),
                np.full(count, end),
            ]
        ).astype(np.int64),
        scale=np.concatenate([old.scale[stays], states, made]),
        power=np.append(old.power[stays], np.zeros(count)).astype(np.int64),
        role=np.concatenate(
            [
                old.role[stays],
                np.full(len(states), ROLES.index("state")),
                np.full(len(made), ROLES.index("transient")),
            ]
        ).astype(np.int64),
    )


def _trained_bytes(graph: OpGraph) -> Floats:
    """Bytes of each trainable parameter. If some are frozen, those with a gradient are taken."""
    role = "weight" if graph.trainable == graph.params else "gradient"
    sizes: Floats = graph.tensors.scale[graph.tensors.role == ROLES.index(role)]
    return sizes


def write(
    path: Path, entries: Iterable[zoo.ZooEntry], kept: Mapping[str, bytes] | None = None
) -> None:
    """Trace entries in every variant and write the archive; members that are `kept` are not traced
    again. Needs PyTorch."""
    from presage.foresee.graph.torch_trace import trace

    known = kept or {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for entry in entries:
            for name, (precision, inference) in _VARIANTS.items():
                data = known.get(f"{entry.name}/{name}")
                if data is None:
                    graph = trace(
                        entry.build,
                        entry.inputs,
                        name=entry.name,
                        precision=precision,
                        inference=inference,
                    )
                    data = _unpacked(graph.to_bytes())
                    print(f"{entry.name} traced for {name}", file=sys.stderr, flush=True)
                member = zipfile.ZipInfo(f"{entry.name}/{name}")
                archive.writestr(member, data, zipfile.ZIP_LZMA)


def _members(path: Path, without: Collection[str]) -> dict[str, bytes]:
    """The archive as it is, but for some entries."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.partition("/")[0] not in without]
        return {name: archive.read(name) for name in names}


def _unpacked(data: bytes) -> bytes:
    """The same archive without its own compression and dates: the outer one compresses better,
    and equal graphs give equal bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as packed, zipfile.ZipFile(file, "w") as plain:
        for name in packed.namelist():
            plain.writestr(zipfile.ZipInfo(name), packed.read(name))
    return file.getvalue()


if __name__ == "__main__":
    _path = Path(__file__).with_name(_ARCHIVE)
    _kept = _members(_path, sys.argv[1:]) if sys.argv[1:] else None
    write(_path, [zoo.find(name) for name in zoo.names()], _kept)
