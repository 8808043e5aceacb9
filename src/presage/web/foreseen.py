"""How what was foreseen is written on the page: rows, bars and charts. Nothing here asks."""

from __future__ import annotations

from typing import Any

from presage.foresee.answer import Quantiles
from presage.foresee.planned import money_text, time_span
from presage.web.charts import COLOURS
from presage.web.words import amount

__all__ = ["bar_rows", "chart_options", "chart_words", "look_rows", "verdict_words"]

_GIB = 1024.0
_SURE, _UNSURE = 0.9, 0.1


def bar_rows(gpus: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For each GPU its bar in GiB, and the legend."""
    names = dict.fromkeys(
        part for gpu in gpus for part, mib in gpu["breakdown"].items() if mib >= 1
    )
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    rows = []
    for gpu in gpus:
        memory, room = gpu["memory_mib"], gpu["room_mib"] / _GIB
        low, mid, high = (memory[at] / _GIB for at in ("p10", "p50", "p90"))
        parts = [
            {"name": name, "gib": gpu["breakdown"][name] / _GIB, "colour": colours[name]}
            for name in names
            if gpu["breakdown"].get(name, 0.0) >= 1
        ]
        words = f"{mid:.1f} of {room:.1f} GiB ({low:.1f}–{high:.1f})"
        verdict, fits = _verdict(gpu["chance_fits"])
        listed = ", ".join(f"{part['name']} {part['gib']:.1f}" for part in parts)
        rows.append(
            {
                **{"name": gpu["name"], "room": room, "p10": low, "p90": high, "parts": parts},
                **{"words": words, "verdict": verdict, "fits": fits},
                "label": f"{gpu['name']}: {words}, {fits}. {listed}",
            }
        )
    return rows, [{"name": name, "colour": colour} for name, colour in colours.items()]


def _verdict(chance: float) -> tuple[str, str]:
    kind = "yes" if chance >= _SURE else "no" if chance < _UNSURE else "maybe"
    if chance >= 0.995:
        return kind, "fits"
    if chance < 0.005:
        return kind, "does not fit"
    return kind, f"fits with a chance of {100 * chance:.0f} %"


def look_rows(said: dict[str, Any], count: int) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of GPUs."""
    unit = said["gpus"][0]["unit"]
    heads = ["GPUs", "Step (10–90 %)", f"{unit.capitalize()} a second", "GPU use"]
    heads += ["USD an hour", f"USD for a million {unit}"]
    rows = []
    for gpu in said["gpus"]:
        step, cost = gpu["step_ms"], gpu["cost"]
        money = ["no price", "no price"]
        if cost is not None:
            money = [f"${cost['usd_per_hour']:,.2f}", _small_money(cost["usd_per_million"])]
        rows.append(
            [
                f"{count} × {gpu['name']}",
                _step_text(step),
                "–" if gpu["per_s"] is None else amount(gpu["per_s"]["p50"]),
                f"{gpu['gpu_util_pct']['p50']:.0f} %",
                *money,
            ]
        )
    return heads, rows


def verdict_words(gpu: dict[str, Any]) -> str:
    """Why it fits or does not, and how far from what was measured that is."""
    domain = gpu["domain"]
    return f"{gpu['reason']}. Measured: {domain['words']}"


def chart_options(said: dict[str, Any]) -> dict[str, Any]:
    """Time against money of every option; large dots are the front."""
    label = {"color": "currentColor"}
    soft = {"lineStyle": {"color": "currentColor", "opacity": 0.15}}
    series: dict[str, list[dict[str, Any]]] = {}
    for option, words in zip(said["options"], said["labels"], strict=True):
        if option["usd"] is None:
            continue
        series.setdefault(option["gpu"], []).append(
            {
                "name": words,
                "value": [round(option["time_s"]["p50"] / 3600, 4), option["usd"]["p50"]],
                "symbolSize": 14 if option["on_front"] else 7,
                "itemStyle": {"opacity": 1.0 if option["on_front"] else 0.4},
            }
        )
    axis = {"type": "log", "axisLabel": label, "splitLine": soft, "nameTextStyle": label}
    return {
        "animation": False,
        "color": list(COLOURS),
        "textStyle": label,
        "grid": {"left": 16, "right": 24, "top": 48, "bottom": 30, "containLabel": True},
        "legend": {"top": 0, "type": "scroll", "textStyle": label},
        "tooltip": {"trigger": "item", "formatter": "{b}<br>{c}", "confine": True},
        "xAxis": {**axis, "name": "hours", "nameLocation": "middle", "nameGap": 26},
        "yAxis": {**axis, "name": "USD"},
        "series": [
            {"type": "scatter", "name": name, "data": data} for name, data in series.items()
        ],
    }


def chart_words(said: dict[str, Any]) -> str:
    """The chart for those who cannot see it."""
    front = [
        f"{words}: {time_span(Quantiles(**option['time_s']))}"
        + ("" if option["usd"] is None else f", {money_text(option['usd']['p50'])}")
        for option, words in zip(said["options"], said["labels"], strict=True)
        if option["on_front"]
    ]
    return "Time and money. " + "; ".join(front[:12])


def _step_text(step: dict[str, float]) -> str:
    if step["p50"] >= 10_000:
        return time_span(Quantiles(**{at: ms / 1000 for at, ms in step.items()}))
    return f"{amount(step['p50'])} ms ({amount(step['p10'])}–{amount(step['p90'])})"


def _small_money(usd: float) -> str:
    return money_text(usd) if usd >= 0.1 else f"${usd:.2g}"
