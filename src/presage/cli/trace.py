"""`presage trace`: look at a trace, or make one. Thin: reading and drawing are `sim`'s work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from presage._api.simulation import make_trace, usual_cluster
from presage.cli._output import check_file, print_json
from presage.model.cluster import WHOLE_GPU
from presage.sim.clusters import Cluster, describe
from presage.sim.generate import KINDS, write_trace
from presage.sim.traces import FORMATS, Trace, read_trace

__all__ = ["trace"]

trace = typer.Typer(help="Look at traces and make them.", no_args_is_help=True)

_SIZES_SHOWN = 12


@trace.command()
def show(
    trace: Annotated[Path, typer.Argument(help="A trace: Parquet, CSV or JSON lines.")],
    format: Annotated[str, typer.Option(help=f"auto, {', '.join(FORMATS)}.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say what is in TRACE: its format, jobs, sizes and durations."""
    facts = _facts(read_trace(trace, format))
    if json:
        print_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        for index, line in enumerate(_lines(value)):
            grid.add_row(name.replace("_", " ") if index == 0 else "", line)
    Console().print(grid, markup=False)


@trace.command()
def make(
    out: Annotated[Path, typer.Option(help="The file to write: .parquet or .csv.")],
    kind: Annotated[str, typer.Option(help=f"{', '.join(KINDS)}.")] = "dlaas",
    jobs: Annotated[int, typer.Option(help="How many jobs.")] = 4000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same trace.")] = 0,
    load: Annotated[
        float | None,
        typer.Option(
            help="Work offered for each GPU second.", show_default="1.1 for dlaas, else 0.95"
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="The cluster whose load it is.",
            show_default="100x4:32c:128g for dlaas, else 30x8",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Make a synthetic trace, in the native format, from a seed."""
    check_file(out, "--out")
    nodes = Cluster(cluster or usual_cluster(kind))
    made = make_trace(kind, jobs, cluster=nodes, load=load, seed=seed)
    write_trace(made, out)
    if json:
        print_json({"path": str(out)} | _facts(made))
    else:
        typer.echo(f"wrote {made.jobs.height:,} jobs for {describe(nodes)} to {out}")


def _facts(trace: Trace) -> dict[str, Any]:
    jobs = trace.jobs.with_columns(
        (pl.col("gpu_milli") * pl.col("workers").fill_null(1) / WHOLE_GPU).alias("gpus")
    )
    duration, gpus = jobs.get_column("duration_s"), jobs.get_column("gpus")
    sizes = jobs.group_by("gpus").len("jobs").sort("gpus").rows()
    times = {"mean": duration.mean(), "max": duration.max()}
    times |= {f"p{p}": duration.quantile(p / 100, "linear") for p in (50, 90, 99)}
    return {
        "name": trace.name,
        "format": trace.format,
        "jobs": jobs.height,
        "notes": list(trace.notes),
        "span_s": jobs.get_column("submit_s").max(),
        "gpu_hours": float((gpus * duration).sum()) / 3600,
        "duration_s": dict(sorted(times.items())),
        "jobs_by_gpus": {f"{size:g}": count for size, count in sizes},
        "elastic_jobs": jobs.get_column("max_workers").count(),
        "jobs_with_estimate": jobs.get_column("estimate_s").count(),
        "gpu_types": sorted(
            set("|".join(jobs.get_column("gpu_types").unique()).split("|")) - {""}
        ),
        "queues": jobs.get_column("queue").n_unique(),
        "owners": jobs.filter(pl.col("owner") != "").get_column("owner").n_unique(),
    }


def _lines(value: object) -> list[str]:
    if isinstance(value, dict):
        shown = [f"{key}: {_number(item)}" for key, item in list(value.items())[:_SIZES_SHOWN]]
        hidden = len(value) - len(shown)
        return [*shown, *([f"… {hidden} more"] if hidden else [])]
    if isinstance(value, list):
        return [str(item) for item in value] or ["none"]
    return [_number(value)]


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}".removesuffix(".0")
    return f"{value:,}" if isinstance(value, int) else str(value)
