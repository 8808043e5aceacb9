"""Put the report together as one page that needs no network and no other file.

The words and the look are in `_page.html`; this module fills it in. Every text that comes from a
trace, a cluster or a configuration is escaped. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

import polars as pl

from presage.model.cluster import Node
from presage.page import asset, embedded, plotly
from presage.sim._charts import charts, gantts
from presage.sim._compare import FIGURES, best, scaled
from presage.sim.clusters import describe
from presage.sim.result import SimResult
from presage.sim.traces import Trace

__all__ = ["page"]

_REJECTED_SHOWN = 10


def page(results: Sequence[SimResult], trace: Trace, nodes: Sequence[Node]) -> str:
    """The report as HTML."""
    drawn = gantts(results)
    data = {"charts": charts(results), "gantts": list(drawn.values())}
    template = Template((files("presage.sim") / "_page.html").read_text(encoding="utf-8"))
    several = "★ marks the best figure of a row. " if len(results) > 1 else ""
    return template.substitute(
        title=escape(f"{trace.name} · Presage"),
        heading=f"Simulation of {escape(trace.name)}",
        facts=_facts(trace, nodes),
        legend=f"{several}JCT is job completion time, from submission to end.",
        table=_table(results),
        gantt=_gantt(list(drawn)),
        rejected=_rejected(results),
        style=asset("_page.css"),
        plotlyjs=plotly(),
        figures=embedded(data),
        script=asset("_page.js"),
    )


def _facts(trace: Trace, nodes: Sequence[Node]) -> str:
    span = trace.jobs.get_column("submit_s").max()
    amount, unit = scaled([float(span) if isinstance(span, float) else 0.0])
    count = f"{trace.jobs.height:,} jobs"
    rows = {
        "Trace": f"{count} submitted over {amount[0]} {unit}, {trace.format} format",
        "Cluster": describe(tuple(nodes)),
    }
    if trace.notes:
        rows["Notes"] = "; ".join(trace.notes)
    return "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows.items())


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


def _gantt(policies: list[str]) -> str:
    if not policies:
        return ""
    options = "".join(f"<option>{escape(name[:60])}</option>" for name in policies)
    return (
        '<section class="wide"><h2>Gantt chart</h2><p>Each job is a row: grey from its submission '
        "to its first start, coloured from there to its end. "
        f'<label>Policy <select id="gantt-policy">{options}</select></label></p>'
        '<div class="chart" id="gantt"></div></section>'
    )


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
