"""The report of simulations as one page that needs nothing else. It writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from presage.model.cluster import Node
from presage.page import render
from presage.sim._charts import charts, gantts
from presage.sim._compare import lines, scaled
from presage.sim.clusters import describe
from presage.sim.result import SimResult
from presage.sim.traces import Trace

__all__ = ["page"]

_REJECTED_SHOWN = 10


def page(results: Sequence[SimResult], trace: Trace, nodes: Sequence[Node]) -> str:
    """The report as HTML."""
    drawn = gantts(results)
    return render(
        "simulation.html",
        title=f"Simulation of {trace.name}",
        facts=_facts(trace, nodes),
        policies=[result.policy[:60] for result in results],
        rows=_rows(results),
        gantts=list(drawn),
        rejected=_rejected(results),
        figures={"charts": charts(results), "choices": {"gantt": list(drawn.values())}},
    )


def _facts(trace: Trace, nodes: Sequence[Node]) -> dict[str, str]:
    span = trace.jobs.get_column("submit_s").max()
    amount, unit = scaled([float(span) if isinstance(span, float) else 0.0])
    count = f"{trace.jobs.height:,} jobs"
    rows = {
        "Trace": f"{count} submitted over {amount[0]} {unit}, {trace.format} format",
        "Cluster": describe(tuple(nodes)),
    }
    if trace.notes:
        rows["Notes"] = "; ".join(trace.notes)
    return rows


def _rows(results: Sequence[SimResult]) -> list[tuple[str, list[str], set[int]]]:
    """Names of figures, their texts, and which of these are the best."""
    return [(line.name, line.texts, line.winners) for line in lines(results)]


def _rejected(results: Sequence[SimResult]) -> list[tuple[str, list[tuple[str, str | None]], int]]:
    """Policies, the first jobs that each rejected, and how many more there are."""
    tables = []
    for result in results[:20]:
        refused = result.jobs.filter(pl.col("status") == "rejected")
        if not refused.is_empty():
            shown = refused.head(_REJECTED_SHOWN)
            rows = shown.select(pl.col("job_id").cast(pl.String), "reason").rows()
            tables.append((result.policy[:60], rows, refused.height - shown.height))
    return tables
