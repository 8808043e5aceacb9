"""How right and how fast model graphs are: the zoo against published figures, and extraction.

`python -m benchmarks.foresee_graphs [--quick] [--json]`. Each model is extracted in a process of
its own: the import of PyTorch (with the parts that its first fake tensor imports) is given apart,
memory is the peak of that process. `--quick` leaves the extraction out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.foresee.graph import precomputed, zoo

TIMM = "profiles/timm_infer_multi_gpu.parquet"
TIMM_NAMES = {
    "mobilenetv2": "mobilenetv2_100",
    "mobilenetv3-small": "mobilenetv3_small_100",
    "mobilenetv3-large": "mobilenetv3_large_100",
    "vit-b-16": "vit_base_patch16_224",
    "resnext50-32x4d": "resnext50_32x4d",
    "wide-resnet50-2": "wide_resnet50_2",
}
EXTRACTED = (
    "resnet18",
    "resnet50",
    "resnet152",
    "vgg16",
    "alexnet",
    "squeezenet1-1",
    "densenet121",
    "mobilenetv2",
    "mobilenetv3-large",
    "efficientnet-b0",
    "convnext-tiny",
    "yolov3",
    "vit-b-16",
    "bert-base",
    "bert-large",
    "gpt2",
    "gpt2-medium",
    "transformer-base",
    "lstm-ptb-large",
    "cyclegan",
)


def accuracy() -> list[dict[str, Any]]:
    """Every entry that somebody publishes a figure of."""
    timm = _timm_activations()
    rows = []
    for name in zoo.names():
        entry = zoo.find(name)
        graph = precomputed.read(entry, inference=True)
        assert graph is not None
        ours = {
            "macs": graph.forward_macs(),
            "params": float(graph.params),
            "activations": graph.activations(),
        }
        theirs = {
            "macs": entry.published.macs,
            "params": entry.published.params,
            "activations": timm.get(TIMM_NAMES.get(name, name.replace("-", "_"))),
        }
        if not any(theirs.values()):
            continue
        row: dict[str, Any] = {"model": name, "where": entry.published.where}
        for what, value in ours.items():
            known = theirs[what]
            row[what] = value
            row[f"{what}_published"] = known
            row[f"{what}_off_pct"] = 100 * (value / known - 1) if known else None
        rows.append(row)
    return rows


def _timm_activations() -> dict[str, float]:
    """Median of what timm's tables list at 224×224, by plain model name."""
    table = pl.read_parquet(shared(TIMM)).filter(pl.col("img_size") == 224)
    table = table.with_columns(pl.col("model").str.split(".").list.first().alias("plain"))
    table = table.filter(pl.col("macts").is_not_nan() & pl.col("macts").is_not_null())
    medians = table.group_by("plain").agg(pl.col("macts").median())
    return {name: 1e6 * float(macts) for name, macts in medians.iter_rows()}


def extraction() -> list[dict[str, Any]]:
    """Seconds and memory of a trace of a training step, each in a process of its own."""
    rows = []
    for name in EXTRACTED:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.foresee_graphs", "--extract", name],
            capture_output=True,
            text=True,
            check=True,
        )
        rows.append(json.loads(done.stdout) | {"process_s": time.perf_counter() - started})
        print(f"{name} done", file=sys.stderr, flush=True)
    return rows


def extract(name: str) -> dict[str, Any]:
    """One model, in this process."""
    started = time.perf_counter()
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from presage.foresee.graph.torch_trace import trace

    torch.set_num_threads(1)
    FakeTensorMode()
    imported = time.perf_counter()
    entry = zoo.find(name)
    graph = trace(entry.build, entry.inputs, name=name)
    return {
        "model": name,
        "operators": len(graph),
        "import_s": imported - started,
        "trace_s": time.perf_counter() - imported,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _show(accurate: list[dict[str, Any]], extracted: list[dict[str, Any]]) -> None:
    print(f"{'model':22}{'MACs (G)':>11}{'off %':>8}{'params (M)':>12}{'off %':>8}", end="")
    print(f"{'acts (M)':>10}{'off %':>8}")
    for row in accurate:
        off = {
            what: "–" if row[f"{what}_off_pct"] is None else f"{row[f'{what}_off_pct']:+.2f}"
            for what in ("macs", "params", "activations")
        }
        print(
            f"{row['model']:22}{row['macs'] / 1e9:11.4f}{off['macs']:>8}"
            f"{row['params'] / 1e6:12.3f}{off['params']:>8}"
            f"{row['activations'] / 1e6:10.2f}{off['activations']:>8}"
        )
    for what, limit in (("macs", 1), ("params", 1), ("activations", 3)):
        values = [abs(r[f"{what}_off_pct"]) for r in accurate if r[f"{what}_off_pct"] is not None]
        inside = int(np.sum(np.array(values) <= limit))
        print(f"{what}: {inside} of {len(values)} within {limit} %, worst {max(values):.2f} %")
    if not extracted:
        return
    print(f"\n{'model':22}{'operators':>10}{'import s':>10}{'trace s':>9}{'total s':>9}", end="")
    print(f"{'peak GiB':>10}")
    for row in extracted:
        print(
            f"{row['model']:22}{row['operators']:10,}{row['import_s']:10.2f}{row['trace_s']:9.2f}"
            f"{row['process_s']:9.2f}{row['peak_gib']:10.2f}"
        )


def main() -> None:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave the extraction out")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--extract", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.extract:
        print(json.dumps(extract(args.extract)))
        return
    accurate = accuracy()
    extracted = [] if args.quick else extraction()
    if args.json:
        print(json.dumps({"accuracy": accurate, "extraction": extracted}, indent=2))
    else:
        _show(accurate, extracted)


if __name__ == "__main__":
    main()
