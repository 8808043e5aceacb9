"""GPU memory that others published for trainings that are no language models of today.

`python -m benchmarks.foresee_published_memory [--json]`. Nothing is fitted on these rows: the
estimator knows one other lab and one GPU, so every source and every GPU (but for the A100) is one
it has not seen. Errors, how often the 80 % interval holds by model, GPU and source, set-ups that
ran and are said not to fit, and published failures that are foreseen. Rows whose model or batch is
not known are left out and counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.foresee import estimators
from presage.foresee.floors import floor_mib
from presage.foresee.gpus import find
from presage.foresee.graph import zoo
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.graph.torch_trace import trace
from presage.foresee.memory import MemoryPhysics
from presage.foresee.sharding import shard
from presage.learn.evaluate import coverage
from presage.model.errors import UserError
from presage.model.setup import Parallelism, Setup

MODELS = {
    "resnet50": ("resnet50", "momentum"),
    "bert-base-squad": ("bert-base-squad", "adam-fused"),
    "bert-large-squad": ("bert-large-squad", "adam-fused"),
    "ncf": ("neumf-ml20m", "adam-fused"),
    "gnmt": ("gnmt", "adam-fused"),
    "waveglow": ("waveglow", "adam-fused"),
    "ssd300-resnet50": ("ssd300-resnet50", "momentum"),
    "maskrcnn-r50-fpn": ("maskrcnn-r50-fpn", "momentum"),
    "mmdetection/mask-rcnn_r50_fpn_1x_coco": ("maskrcnn-r50-fpn", "momentum"),
}
"""The zoo's name and what NVIDIA's examples, which Lambda ran, train it with. Their attention is
written out: fused kernels came later."""

VARIES = ("gnmt", "maskrcnn-r50-fpn", "mmdetection/mask-rcnn_r50_fpn_1x_coco")
"""Sentences and images of many sizes, which nobody published: shown, but not in the totals."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One row with what was foreseen, in MiB."""

    source: str
    model: str
    gpu: str
    software: str
    """Of before 2021, when attention and activations wrote out more, or later: by the GPU."""
    actual: float | None
    outcome: str
    foreseen: tuple[float, float, float]
    needs: tuple[float, float, float]
    room: float


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = pl.read_parquet(shared("profiles/published_memory.parquet"))
    table = table.filter(~pl.col("suspect") & pl.col("model").is_in(list(MODELS)))
    rows = [judged for row in table.iter_rows(named=True) if (judged := _judge(row)) is not None]
    measured = [row for row in rows if row.actual is not None]
    fixed = [row for row in measured if row.model not in VARIES]
    lines: list[dict[str, Any]] = [_line("all", "inputs of one size", fixed)]
    for by, kept in _groupings(measured, fixed):
        for name in sorted({getattr(row, by) for row in kept}):
            lines.append(_line(by, name, [r for r in kept if getattr(r, by) == name]))
    verdicts = _verdicts(row for row in rows if row.model not in VARIES)
    if arguments.json:
        print(json.dumps({"rows": lines, "verdicts": verdicts}, indent=2))
        return
    print(f"{len(measured)} of {table.height} rows can be asked")
    for line in lines:
        print(
            f"{line['by']:<8}{line['name']:<40}{line['n']:>4}  typical error "
            f"{100 * line['typical']:5.1f} %  ratio {line['ratio']:.2f}  "
            f"RMSLE {line['rmsle']:.3f}  80 % interval holds {100 * line['holds']:5.1f} %"
        )
    for name, value in verdicts.items():
        print(f"{name}: {value}")


def _judge(row: dict[str, Any]) -> Judged | None:
    if row["batch_per_gpu"] is None or row["gpu"] == "unknown":
        return None
    name, optimizer = MODELS[row["model"]]
    gpus = int(row["gpus"] or 1)
    setup = Setup(
        optimizer=optimizer,
        precision=row["precision"],
        attention="eager",
        cudnn_benchmark=row["source"] == "lambda-dlbenchmark",
        gpus=gpus,
        parallel=Parallelism("ddp") if gpus > 1 else Parallelism(),
    )
    try:
        gpu = find(row["gpu"])
        graph = shard(_graph(name, optimizer, row["precision"]), setup)
    except UserError:
        return None
    physics = _physics(graph.name, row["precision"], gpus, graph, row["batch_per_gpu"])
    answer = estimators.memory().graph.forecast(
        physics, gpu, setup, floor_mib(gpu, "pytorch-eager")
    )
    foreseen = answer.shows
    if row["kind"] == "allocated":  # tensors and workspaces, not what the process holds beside
        apart = answer.parts["device and driver"] + answer.parts["allocator"]
        foreseen = foreseen - apart - answer.parts.get("communication", 0.0)
    return Judged(
        row["source"],
        row["model"],
        gpu.name,
        "before 2021" if gpu.year < 2020 else "since 2021",
        row["peak_memory_mib"],
        row["outcome"],
        (float(foreseen[0]), float(foreseen[1]), float(foreseen[2])),
        (float(answer.needs[0]), float(answer.needs[1]), float(answer.needs[2])),
        float(gpu.usable_mib),
    )


@cache
def _graph(name: str, optimizer: str, precision: str) -> OpGraph:
    entry = zoo.find(name)
    return trace(
        entry.build,
        entry.inputs,
        name=entry.name,
        optimizer=optimizer,
        precision=precision,
        attention="eager",
    )


_DONE: dict[tuple[Any, ...], MemoryPhysics] = {}


def _physics(name: str, precision: str, gpus: int, graph: OpGraph, batch: float) -> MemoryPhysics:
    key = (name, precision, gpus, batch)
    if key not in _DONE:
        _DONE[key] = MemoryPhysics.of(graph, batch)
    return _DONE[key]


def _line(by: str, name: str, rows: list[Judged]) -> dict[str, Any]:
    truth = np.array([row.actual for row in rows], float)
    found = np.array([row.foreseen for row in rows])
    ratio = found[:, 1] / truth
    return {
        "by": by,
        "name": name,
        "n": len(rows),
        "typical": float(np.median(np.abs(ratio - 1))),
        "ratio": float(np.median(ratio)),
        "rmsle": float(np.sqrt(np.mean(np.log(ratio) ** 2))),
        "holds": float(coverage(truth, found)),
    }


def _groupings(measured: list[Judged], fixed: list[Judged]) -> list[tuple[str, list[Judged]]]:
    return [("model", measured), ("gpu", fixed), ("source", fixed), ("software", fixed)]


def _verdicts(judged: Iterable[Judged]) -> dict[str, str]:
    rows = list(judged)
    ran = [row for row in rows if row.outcome in ("ok", "fits")]
    failed = [row for row in rows if row.outcome == "oom"]
    refused = sum(row.needs[0] > row.room for row in ran)
    doubted = sum(row.needs[1] > row.room for row in ran)
    foreseen = sum(row.needs[1] > row.room for row in failed)
    warned = sum(row.needs[2] > row.room for row in failed)
    return {
        "ran, said not to fit (even at 10 %)": f"{refused} of {len(ran)}",
        "ran, median beyond the card": f"{doubted} of {len(ran)}",
        "out of memory, foreseen at the median": f"{foreseen} of {len(failed)}",
        "out of memory, foreseen at 90 %": f"{warned} of {len(failed)}",
    }


if __name__ == "__main__":
    main()
