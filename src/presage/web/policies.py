"""The policy that decides, the choice of another, and policies compared on what this cluster has
seen: the journal replayed under each of them."""

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
from presage.web.frame import VALUE, Tag, Visit, begin, choice, confirm, go, notice, tell
from presage.web.words import clock, duration

__all__: list[str] = []

_WEEK = "604800"
SPANS = {"86400": "the last day", _WEEK: "the last week", "2592000": "30 days", "": "all of it"}
RECORDED = "as it happened"
_MOST = 6
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
        known = await visit.get("/policies", max_age_s=0.0)
        _SwitchForm(visit, await visit.get("/policy", max_age_s=0.0)).build()
        if not visit.may_operate():
            who = f"{visit.me['name']} is a {visit.me['role']}"
            notice(f"{who}; comparing policies needs the role operator.")
            return None
        _WhatIfForm(visit, known).build()
    return None


class _SwitchForm:
    """What decides, and for admins the choice of another, with its forecast beside it."""

    def __init__(self, visit: Visit, status: dict[str, Any]) -> None:
        self._visit, self._status = visit, status
        self._others = [name for name in status["choices"] if name != status["name"]]
        self._wanted = self._others[0] if self._others else ""

    def build(self) -> None:
        """Draw it."""
        status = self._status
        with ui.element("section").classes("card"):
            Tag("h2", f"This server decides by {status['name']}")
            Tag("p", self._words(), "soft")
            if not self._visit.is_admin():
                Tag("p", "An admin can have another policy decide while the server runs.", "soft")
                return
            with ui.element("div").classes("tools"):
                select = choice("Another one", {one: one for one in self._others}, self._wanted)
                select.on("change", self._choose, js_handler=VALUE)
                self._button = Tag("button", "Compare and switch", "primary", type="button")
                self._button.on("click", self._switch)
                if status["chosen"]:
                    back = Tag("button", f"Back to {status['started_with']}", type="button")
                    back.on("click", self._reset)
                self._state = Tag("span", "", "soft", role="status")
            Tag("p", "A pipeline of your own is sent by command:", "soft")
            CopyBox("presage policy set FILE.yaml", "Copy the command")

    def _words(self) -> str:
        status = self._status
        if not status["chosen"]:
            own = f", of {status['origin']}" if status["origin"] else ""
            return f"It is what the server was started with{own}."
        when = f", {clock(status['at'])}" if status["at"] is not None else ""
        return (
            f"Chosen by {status['by'] or 'an admin'}{when}; it stays after a restart. The server "
            f"was started with {status['started_with']}."
        )

    def _choose(self, event: GenericEventArguments) -> None:
        if str(event.args) in self._others:
            self._wanted = str(event.args)

    async def _switch(self) -> None:
        """Forecast first, then the question."""
        wanted, now = self._wanted, self._status["name"]
        self._button.enable(False)
        self._state.say("Replaying the last week under both …")
        lines = [
            "It decides from now on, also after a restart. What runs stays as it is; a policy "
            "that preempts may stop jobs for others from then on."
        ]
        rows: dict[str, dict[str, Any]] = {}
        body = {"policies": [now, wanted], "since_s": float(_WEEK), "config": None}
        try:
            answer = await self._visit.post("/what-if", json=body)
            rows = answer["policies"]
            lines.append(f"The {answer['recorded']['jobs']:,} jobs of the last week under both:")
        except ApiError as error:
            lines.append(f"There is no forecast: {error}")
        self._state.say("")
        self._button.enable(True)

        def shows() -> None:
            if rows:
                _beside(rows)

        question = f"Decide by {wanted} instead of {now}?"
        if await confirm(question, lines, f"Decide by {wanted}", shows=shows):
            await self._set(wanted)

    async def _reset(self) -> None:
        started = self._status["started_with"]
        lines = ["It is what the server was started with. What runs stays as it is."]
        if await confirm(f"Go back to {started}?", lines, f"Decide by {started}"):
            await self._set(None)

    async def _set(self, name: str | None) -> None:
        body = {"name": name, "config": None}
        if await tell(self._visit.send("PUT", "/policy", json=body)) is not None:
            go("/policies")


class _WhatIfForm:
    """Which policies, how far back, and the answer."""

    def __init__(self, visit: Visit, known: dict[str, Any]) -> None:
        self._visit, self._known = visit, known
        others = [name for name in known["policies"] if name not in known["own"]]
        self._chosen = dict.fromkeys([*known["own"][:1], *others[:2]])
        self._since = _WEEK

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
                select = choice("Of", SPANS, self._since)
                select.on("change", self._choose_span, js_handler=VALUE)
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


def _beside(rows: dict[str, dict[str, Any]]) -> None:
    """A column for each policy: few of them, in little room."""
    with ui.element("table").classes("list"):
        with ui.element("thead"), ui.element("tr"):
            for name in ("", *rows):
                Tag("th", name, scope="col")
        with ui.element("tbody"):
            for key, (name, text) in FIGURES.items():
                with ui.element("tr"):
                    Tag("th", name, scope="row")
                    for figures in rows.values():
                        Tag("td", _cell(figures[key], text))


def _cell(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None else text(value)


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
                        Tag("td", _cell(figures[key], text), data_label=name)


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
