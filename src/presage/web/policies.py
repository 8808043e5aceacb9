"""Policies compared on what this cluster has seen: the journal replayed under each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.model.errors import ApiError
from presage.web.charts import COLOURS
from presage.web.elements import CopyBox
from presage.web.frame import Tag, Visit, begin, notice
from presage.web.words import clock, duration

__all__: list[str] = []

SPANS = {"86400": "the last day", "604800": "the last week", "2592000": "30 days", "": "all of it"}
RECORDED = "as it happened"
_MOST = 6
_VALUE = "(event) => emit(event.target.value)"
_CHECKED = "(event) => emit(event.target.checked)"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _plain(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "avg_wait_s": ("Mean wait", duration),
    "p99_wait_s": ("99 % waited less than", duration),
    "avg_jct_s": ("Mean time to completion", duration),
    "p99_jct_s": ("99 % completed within", duration),
    "gpu_utilization": ("GPUs in use", _share),
    "fairness": ("Fairness", _plain),
    "preemptions": ("Stops for others", _plain),
}


@ui.page("/policies")
async def policies(request: Request) -> Response | None:
    """How the cluster would have done under another policy."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Policies", "/policies"):
        known = await visit.get("/policies", max_age_s=60.0)
        _says_who_decides(known)
        if not visit.may_operate():
            who = f"{visit.me['name']} is a {visit.me['role']}"
            notice(f"{who}; comparing policies needs the role operator.")
            return None
        _WhatIfForm(visit, known).build()
    return None


def _says_who_decides(known: dict[str, Any]) -> None:
    with ui.element("section").classes("card"):
        names = " or ".join(known["own"]) or "a policy of its own"
        Tag("h2", f"This server decides by {names}")
        Tag(
            "p",
            "Another one is chosen where the server is started, by its configuration or on its "
            "command line. Start it again with that: jobs keep running, and the journal says from "
            "when on which policy decided.",
            "soft",
        )
        CopyBox("presage serve --policy NAME", "Copy the command")


class _WhatIfForm:
    """Which policies, how far back, and the answer."""

    def __init__(self, visit: Visit, known: dict[str, Any]) -> None:
        self._visit, self._known = visit, known
        others = [name for name in known["policies"] if name not in known["own"]]
        self._chosen = dict.fromkeys([*known["own"][:1], *others[:2]])
        self._since = "604800"

    def build(self) -> None:
        """Draw the form and the place for the answer."""
        with ui.element("section").classes("card"):
            Tag("h2", "What if another policy had decided?")
            Tag(
                "p",
                "The jobs of this server's journal, with the run times they turned out to have, "
                "are simulated under each policy.",
                "soft",
            )
            with ui.element("fieldset").classes("tools"):
                Tag("legend", "Policies", "soft")
                for name in self._known["policies"]:
                    self._choice(name)
            with ui.element("div").classes("tools"):
                with Tag("label", "Of"), ui.element("select") as select:
                    for value, words in SPANS.items():
                        option = Tag("option", words, value=value)
                        if value == self._since:
                            option.props["selected"] = True
                select.on("change", self._choose_span, js_handler=_VALUE)
                self._button = Tag("button", "Compare", "primary", type="button")
                self._button.on("click", self._ask)
                self._state = Tag("span", "", "soft", role="status")
        self._problem = Tag("p", "", "banner", role="alert")
        self._answer = ui.element("div")

    def _choice(self, name: str) -> None:
        own = " (decides here)" if name in self._known["own"] else ""
        with ui.element("label").style("display: flex; gap: 6px; align-items: center"):
            box = Tag("input", type="checkbox")
            if name in self._chosen:
                box.props["checked"] = True
            Tag("span", name + own)

        def choose(event: GenericEventArguments) -> None:
            if event.args:
                self._chosen[name] = None
            else:
                self._chosen.pop(name, None)

        box.on("change", choose, js_handler=_CHECKED)

    def _choose_span(self, event: GenericEventArguments) -> None:
        if str(event.args) in SPANS:
            self._since = str(event.args)

    async def _ask(self) -> None:
        self._problem.say("")
        if not 1 <= len(self._chosen) <= _MOST:
            self._problem.say(f"Choose one to {_MOST} policies.")
            return
        self._button.enable(False)
        self._state.say("Replaying the journal …")
        since = float(self._since) if self._since else None
        body = {"policies": list(self._chosen), "since_s": since, "config": None}
        try:
            answer = await self._visit.post("/what-if", json=body)
        except ApiError as error:
            self._problem.say(str(error))
        else:
            self._show(answer)
        self._state.say("")
        self._button.enable(True)

    def _show(self, answer: dict[str, Any]) -> None:
        rows = {RECORDED: answer["recorded"], **answer["policies"]}
        self._answer.clear()
        with self._answer:
            with ui.element("section").classes("card"):
                jobs = f"{answer['recorded']['jobs']:,} jobs"
                Tag("h2", f"{jobs} from {clock(answer['since'])} to {clock(answer['until'])}")
                _table(rows)
                for note in answer["notes"]:
                    Tag("p", note[:1].upper() + note[1:] + ".", "soft")
                Tag("p", _audit_words(answer["audit"]), "soft")
            with ui.element("section").classes("card"):
                Tag("h2", "Mean wait and time to completion")
                _chart(rows)


def _audit_words(audit: dict[str, Any]) -> str:
    count = f"{audit['decisions']:,}"
    if audit["same"]:
        return f"Audit: all {count} decisions of the journal come out the same again."
    at = clock(audit["first_difference_at"])
    return f"Audit: {count} decisions come out the same; at {at} one comes out otherwise."


def _table(rows: dict[str, dict[str, Any]]) -> None:
    with ui.element("div").classes("scroll"), ui.element("table").classes("list cards"):
        with ui.element("thead"), ui.element("tr"):
            Tag("th", "Policy", scope="col")
            for name, _ in FIGURES.values():
                Tag("th", name, scope="col")
        with ui.element("tbody"):
            for policy, figures in rows.items():
                with ui.element("tr"):
                    Tag("td", policy, data_label="Policy")
                    for key, (name, text) in FIGURES.items():
                        value = figures[key]
                        Tag("td", "–" if value is None else text(value), data_label=name)


def _chart(rows: dict[str, dict[str, Any]]) -> None:
    """Bars, with what they show in words for those who cannot see them."""
    shown = {"avg_wait_s": "mean wait", "avg_jct_s": "mean time to completion"}
    label = {"color": "currentColor"}
    most = max((figures[key] or 0.0 for figures in rows.values() for key in shown), default=0.0)
    units = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
    size, unit = next((one for one in units if most >= 2 * one[0]), units[-1])
    bars = {
        key: [round((figures[key] or 0.0) / size, 2) for figures in rows.values()] for key in shown
    }
    chart = ui.echart(
        {
            "animation": False,
            "color": list(COLOURS),
            "textStyle": label,
            "grid": {"left": 8, "right": 30, "top": 34, "bottom": 8, "containLabel": True},
            "legend": {"top": 0, "textStyle": label},
            "tooltip": {"trigger": "axis"},
            "xAxis": {"type": "category", "data": list(rows), "axisLabel": label},
            "yAxis": {
                "type": "value",
                "name": unit,
                "nameTextStyle": label,
                "axisLabel": label,
            },
            "series": [
                {"type": "bar", "name": name, "data": bars[key]} for key, name in shown.items()
            ],
        },
        renderer="svg",
    ).classes("chart")
    chart.props["role"] = "img"
    words = (
        f"{policy}: {duration(figures['avg_wait_s'] or 0.0)}, "
        f"{duration(figures['avg_jct_s'] or 0.0)}"
        for policy, figures in rows.items()
    )
    chart.props["aria-label"] = "Mean wait and mean time to completion. " + "; ".join(words)
