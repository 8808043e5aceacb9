"""What would change with another GPU, with more servers and workers, with the batch and the
network: the three questions that the paper asks of foreseen bursts, as a page with charts.

It reads predictions that were made; nothing here foresees a burst or writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from presage.foresee.answer import Prediction, Quantiles
from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.foresee.bursts.steps import DistributedSteps
from presage.foresee.bursts.use import step_model
from presage.model.errors import UserError
from presage.page import COLOURS, render
from presage.telemetry.bursts import RESOURCES

__all__ = ["BATCHES", "burst_page"]

BATCHES = (0.25, 0.5, 1, 2, 4)
"""Of the batch that was asked for."""
_SERVERS = (0, 1, 2, 4)
_WORKERS = (1, 2, 3, 4, 6, 8)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _BurstChart:
    """A chart and what to see in it."""

    title: str
    words: str
    figure: dict[str, Any]


def burst_page(
    here: Prediction, batches: Sequence[Prediction], settings: Sequence[Prediction]
) -> str:
    """The page, as HTML: of a prediction in a setting, the same with other batches, and the same
    in each setting whose bursts are known."""
    model = step_model()
    if model is None or here.distributed is None or here.setting is None:
        raise UserError("no bundle knows steps of distributed trainings: presage fit bursts")
    setting = Setting.parse(here.setting)
    charts = {
        "gpus": _by_gpu(here, setting, model),
        "roles": _by_roles(here, setting, model),
        "batches": _by_batch(batches, setting, model),
    }
    known = [each for each in settings if each.bursts is not None]
    if known:
        charts["pulse"] = _by_setting(known)
    return render(
        "bursts.html",
        title=f"{here.name} in {setting}",
        facts={
            "Batch of a worker": f"{here.batch:,}",
            "Slopes": f"{here.distributed.slopes_mib:,.1f} MiB",
            "Parameters": f"{here.params:,}",
        },
        charts=charts,
        heads=["setting", "of", "height", "burst ms", "idle ms"],
        rows=[row for each in known for row in _rows(each)],
        evidence=list(dict.fromkeys(here.evidence)),
        figures={"charts": {place: chart.figure for place, chart in charts.items()}},
    )


def _by_gpu(here: Prediction, setting: Setting, model: DistributedSteps) -> _BurstChart:
    """Computing, and talking that it does not hide, on each GPU that was asked for."""
    timed = {name: _step(model, on.step_ms, here, setting) for name, on in here.gpus.items()}
    names = list(timed)
    bars = [
        _bar("computing", names, [each[1] for each in timed.values()], 0),
        _bar("talking", names, [each[2] for each in timed.values()], 1),
    ]
    return _BurstChart(
        "Another GPU",
        f"A step in {setting}. A faster GPU shortens computing alone; what is left is talking.",
        {"data": bars, "layout": {"barmode": "stack", "yaxis": _axis("ms")}},
    )


def _by_roles(here: Prediction, setting: Setting, model: DistributedSteps) -> _BurstChart:
    """Samples a second against workers, by servers."""
    compute = next(iter(here.gpus.values())).step_ms
    lines = []
    for at, servers in enumerate(_SERVERS):
        rates = []
        for workers in _WORKERS:
            asked = Setting(workers, setting.network, servers)
            rates.append(_rate(model, compute, here, here.batch, asked))
        name = f"{servers} server{'s' * (servers > 1)}" if servers else "all-reduce"
        lines.append(_line(name, list(_WORKERS), rates, at))
    rate = {**_axis("samples a second"), "type": "log"}  # one worker alone does not talk
    layout = {"xaxis": _axis("workers"), "yaxis": rate}
    words = f"All workers together, over {setting.network}, each on a device of its own."
    return _BurstChart("Servers and workers", words, {"data": lines, "layout": layout})


def _by_batch(
    batches: Sequence[Prediction], setting: Setting, model: DistributedSteps
) -> _BurstChart:
    """Samples a second against the batch, by network."""
    lines = []
    for at, network in enumerate(NETWORKS):
        asked = replace(setting, network=network)
        rates = [
            _rate(model, next(iter(each.gpus.values())).step_ms, each, each.batch, asked)
            for each in batches
        ]
        lines.append(_line(network, [each.batch for each in batches], rates, at))
    layout = {
        "xaxis": {**_axis("batch of a worker"), "type": "log"},
        "yaxis": {**_axis("samples a second"), "type": "log"},
    }
    words = "A larger batch computes longer for the same bytes; a network that is fast needs none."
    return _BurstChart("Batch and network", words, {"data": lines, "layout": layout})


def _by_setting(known: Sequence[Prediction]) -> _BurstChart:
    """How long the network and the device are busy and idle, by setting."""
    names = [str(each.setting) for each in known]
    bars = []
    for at, (resource, metric) in enumerate(
        (which, what) for which in ("util", "sent") for what in ("burst_ms", "idle_ms")
    ):
        values = [each.bursts[resource][metric].p50 for each in known if each.bursts is not None]
        what = "bursts" if metric == "burst_ms" else "idle"
        bars.append(_bar(f"{resource}, {what}", names, values, at))
    layout = {"barmode": "group", "yaxis": {**_axis("ms"), "type": "log"}}
    words = "How long the device computes and the network sends at a time, and is idle between."
    return _BurstChart("How it pulses", words, {"data": bars, "layout": layout})


def _step(
    model: DistributedSteps, compute: Quantiles, told: Prediction, setting: Setting
) -> tuple[float, float, float]:
    """A step, its computing and its talking."""
    assert told.distributed is not None
    slopes = told.distributed.slopes_mib * _MIB
    timed = model.foresee((compute.p10, compute.p50, compute.p90), slopes, setting)
    return timed.step_ms[1], timed.compute_ms, timed.exposed_ms


def _rate(
    model: DistributedSteps, compute: Quantiles, told: Prediction, batch: int, setting: Setting
) -> float:
    return 1e3 * batch * setting.workers / _step(model, compute, told, setting)[0]


def _rows(told: Prediction) -> list[tuple[str, list[str]]]:
    """For each resource, height, duration and idle time."""
    assert told.bursts is not None
    rows = []
    for at, (name, each) in enumerate(told.bursts.items()):
        cells = [f"{_short(q.p50)} ({_short(q.p10)}–{_short(q.p90)})" for q in each.values()]
        cells[0] += " %" if RESOURCES[name] == "pct" else " MiB/s"
        rows.append(("" if at else str(told.setting), [name, *cells]))
    return rows


def _short(value: float) -> str:
    """With three digits where there are as many, and never with an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bar(name: str, x: list[str], y: list[float], at: int) -> dict[str, Any]:
    colour = {"color": COLOURS[at % len(COLOURS)]}
    return {"type": "bar", "name": name, "x": x, "y": _rounded(y), "marker": colour}


def _line(name: str, x: list[int], y: list[float], at: int) -> dict[str, Any]:
    colour = {"color": COLOURS[at % len(COLOURS)]}
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x} | {
        "y": _rounded(y),
        "line": colour,
    }


def _axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}}


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
