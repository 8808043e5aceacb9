"""Put the report together as one page that needs no network and no other file.

Every text that comes from a trace, a cluster or a configuration is escaped. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import polars as pl

from presage.model.cluster import Node
from presage.page import choice, section
from presage.page import page as html_page
from presage.sim._charts import charts, gantts
from presage.sim._compare import FIGURES, best, scaled
from presage.sim.clusters import describe
from presage.sim.result import SimResult
from presage.sim.traces import Trace

__all__ = ["page"]

_REJECTED_SHOWN = 10
_CHARTS = (
    (
        "jct",
        "Job completion time",
        "The share of finished jobs that took at most so long, from submission to end.",
        False,
    ),
    (
        "wait",
        "Wait by job size",
        "Time queued. Boxes hold the middle half of the jobs, whiskers reach from 5 to 95 %.",
        False,
    ),
    (
        "queue",
        "Queue length",
        "Jobs that waited, at their peak in each slice of time. Double-click to see the whole "
        "run.",
        True,
    ),
    (
        "utilization",
        "GPU utilization",
        "The share of all GPUs that jobs held, averaged over each slice of time. Double-click to "
        "see the whole run.",
        True,
    ),
)
"""Places of charts: their ids, titles, words, and whether they take the whole width."""
_GANTT = (
    "Each job is a row: grey from its submission to its first start, coloured from there to its "
    "end."
)


def page(results: Sequence[SimResult], trace: Trace, nodes: Sequence[Node]) -> str:
    """The report as HTML."""
    drawn = gantts(results)
    several = "★ marks the best figure of a row. " if len(results) > 1 else ""
    legend = f"{several}JCT is job completion time, from submission to end."
    parts = [
        section("Policies side by side", legend, f'<div class="scroll">{_table(results)}</div>'),
        '<div class="charts">',
        *(
            section(title, words, f'<div class="chart" id="{place}"></div>', wide=wide)
            for place, title, words, wide in _CHARTS
        ),
    ]
    if drawn:
        parts.append(section("Gantt chart", _GANTT, choice("gantt", "Policy", {"": list(drawn)})))
    body = "".join([*parts, "</div>", _rejected(results)])
    figures = {"charts": charts(results), "choices": {"gantt": list(drawn.values())}}
    return html_page(f"Simulation of {trace.name}", _facts(trace, nodes), body, figures)


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


def _table(results: Sequence[SimResult]) -> str:
    summaries = [result.summary() for result in results]
    heads = "".join(f'<th scope="col">{escape(result.policy[:60])}</th>' for result in results)
    body = []
    for figure in FIGURES:
        values = [
            figure.of(result, summary) for result, summary in zip(results, summaries, strict=True)
        ]
        if figure.optional and not any(values):
            continue
        texts, unit = figure.texts(values)
        winners = best(figure, values)
        cells = "".join(
            f'<td class="best">{text}</td>' if index in winners else f"<td>{text}</td>"
            for index, text in enumerate(texts)
        )
        name = figure.name + (f" ({unit})" if unit else "")
        body.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _rejected(results: Sequence[SimResult]) -> str:
    parts = []
    for result in results[:20]:
        refused = result.jobs.filter(pl.col("status") == "rejected")
        if refused.is_empty():
            continue
        rows = refused.head(_REJECTED_SHOWN).select("job_id", "reason").rows()
        items = "".join(
            f"<li>job {escape(str(job)[:60])}: {escape((reason or 'no reason given')[:300])}</li>"
            for job, reason in rows
        )
        more = refused.height - len(rows)
        items += f"<li>… and {more:,} more</li>" if more else ""
        parts.append(f"<p>{escape(result.policy[:60])}</p><ul>{items}</ul>")
    return f"<section><h2>Rejected jobs</h2>{''.join(parts)}</section>" if parts else ""
