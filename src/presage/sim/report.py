"""Results for people and for programs: a terminal table, JSON, Parquet, one HTML page.

Files are written whole or not at all; `write_all` writes several so that either all of them appear
or none. Figures come from `SimResult.summary` alone: nothing is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
from rich import box
from rich.table import Table
from rich.text import Text

from presage.model.cluster import Node
from presage.model.errors import UserError
from presage.sim._compare import lines
from presage.sim._files import replacing
from presage.sim._html import page
from presage.sim.result import SimResult
from presage.sim.traces import Trace

__all__ = ["jobs_file", "table", "to_json", "write_all", "write_html", "write_jobs"]

_JOB_COLUMNS = ("job_id", "submit_s", "start_s", "end_s", "wait_s", "jct_s", "nodes")
_SHORT_HEADS = {
    "finished": "done",
    "rejected": "re-\njected",
    "makespan_s": "make-\nspan",
    "preemptions": "pre-\nempted",
    "cpu_s": "CPU",
}


def table(results: Sequence[SimResult]) -> Table:
    """The comparison for a terminal of 80 columns, a row for each policy; the best are green."""
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    drawn.add_column("policy", no_wrap=True, min_width=8)
    columns = []
    for line in lines(results):
        if line.figure.key == "held_gpu_hours":
            continue
        head = _SHORT_HEADS.get(line.figure.key, line.figure.name.replace(" ", "\n"))
        head = f"{head}\n{line.unit}" if line.unit else head
        drawn.add_column(head, justify="right", no_wrap=True)
        columns.append(
            [
                Text(text, "bold green" if at in line.winners else "")
                for at, text in enumerate(line.texts)
            ]
        )
    for index, result in enumerate(results):
        drawn.add_row(Text(result.policy), *(column[index] for column in columns))
    return drawn


def to_json(results: Sequence[SimResult]) -> dict[str, dict[str, dict[str, Any]]]:
    """`{"policies": {name: figures}}`; a figure that is not a finite number is None. Of a run with
    advisors, `advice` says how good they were."""
    policies: dict[str, dict[str, Any]] = {}
    for result in results:
        policies[result.policy] = {name: _finite(value) for name, value in result.summary.items()}
        if result.advice is not None:
            policies[result.policy]["advice"] = asdict(result.advice)
    return {"policies": policies}


def write_html(
    results: Sequence[SimResult], trace: Trace, nodes: Sequence[Node], path: str | Path
) -> None:
    """One self-contained page."""
    write_all(results, trace, nodes, report=Path(path))


def write_jobs(result: SimResult, directory: str | Path, *, integer_ids: bool = False) -> Path:
    """`<policy>.parquet` in the directory: each job's times and nodes. Returns its path."""
    target = Path(directory) / jobs_file(result.policy)
    with replacing(target) as draft:
        _jobs(result, integer_ids).write_parquet(draft)
    return target


def write_all(
    results: Sequence[SimResult],
    trace: Trace,
    nodes: Sequence[Node],
    *,
    jobs_out: Path | None = None,
    report: Path | None = None,
) -> None:
    """Everything that was asked for, or nothing: names are taken only when all is written."""
    try:
        with ExitStack() as drafts:
            if jobs_out is not None:
                jobs_out.mkdir(exist_ok=True)
                for result in results:
                    draft = drafts.enter_context(replacing(jobs_out / jobs_file(result.policy)))
                    _jobs(result, trace.integer_ids).write_parquet(draft)
            if report is not None:
                draft = drafts.enter_context(replacing(report))
                draft.write_text(page(results, trace, nodes), encoding="utf-8")
    except OSError as error:
        where = error.filename or report or jobs_out
        raise UserError(f"cannot write {where}: {error.strerror or error}") from None


def jobs_file(policy: str) -> str:
    """The name of a policy's job table; signs that would leave the directory are encoded."""
    return f"{quote(policy, safe=' +@,=()')}.parquet"


def _jobs(result: SimResult, integer_ids: bool) -> pl.DataFrame:
    jobs = result.jobs.select(_JOB_COLUMNS)
    return jobs.with_columns(pl.col("job_id").cast(pl.Int64)) if integer_ids else jobs


def _finite(value: float | int | None) -> float | int | None:
    return value if value is None or math.isfinite(value) else None
