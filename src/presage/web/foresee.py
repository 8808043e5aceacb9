"""What a training would need, before it runs: memory against the card, time, money, and plans.

The page only knows models by name; a process of its own computes (`presage.web.asking`).
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.errors import UserError
from presage.web.asking import Desks
from presage.web.elements import CopyBox, ForeseeForm, MemoryBars
from presage.web.foreseen import bar_rows, chart_options, chart_words, look_rows, verdict_words
from presage.web.frame import Tag, begin
from presage.web.questions import ForeseeQuestion, manifest_text, read_question

__all__: list[str] = []


@ui.page("/foresee")
async def foresee(request: Request) -> Response | None:
    """A form, and what is foreseen."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Foresee", "/foresee"):
        Tag(
            "p",
            "What a training will need, before it runs. Intervals are from 10 to 90 %.",
            "soft",
        )
        page = _ForeseePage(request.app.state.desks)
        page.build(dict(request.query_params))
    return None


class _ForeseePage:
    """One visitor's question and its answer."""

    def __init__(self, desks: Desks) -> None:
        self._desks = desks
        self._wanted: dict[str, Any] | None = None
        self._busy = False

    def build(self, address: dict[str, str]) -> None:
        """Draw the form with the state of the address, and the places of the answers."""
        problem, question = "", ForeseeQuestion()
        try:
            question = read_question(address)
        except UserError as wrong:
            problem = f"The link is not right: {wrong}"
        with ui.element("div").classes("split"):
            with ui.element("section").classes("card"):
                usual = ForeseeQuestion().model_dump()
                self._form = ForeseeForm(question.model_dump(), usual, self._ask, self._plan)
            with ui.element("div"):
                self._problem = Tag("p", problem, "banner", role="alert")
                self._state = Tag("p", "", "soft", role="status")
                self._planned = ui.element("div")
                words = "Reading the model: a few seconds the first time …"
                self._reading = Tag("p", "" if problem else words, "soft", role="status")
                self._answer = ui.element("div")
        ui.timer(0.05, self._offer_names, once=True)  # the page need not wait for them

    async def _offer_names(self) -> None:
        try:
            self._form.offer(await self._desks.names())
        except UserError as wrong:
            self._problem.say(str(wrong))

    async def _ask(self, given: dict[str, Any]) -> None:
        """Answer the latest question; those that came between are dropped."""
        self._wanted = given
        if self._busy:
            return
        self._busy = True
        try:
            while self._wanted is not None:
                wanted, self._wanted = self._wanted, None
                await self._look(wanted)
        finally:
            self._busy = False

    async def _look(self, given: dict[str, Any]) -> None:
        self._answer.classes(add="busy")
        try:
            question = read_question(given)
            said = await self._desks.look.ask("look", question.look(largest=False))
            self._problem.say("")
            self._show(question, said)
            self._answer.classes(remove="busy")
            if self._wanted is None:  # what takes longer, once nobody moves anything
                said = await self._desks.look.ask("look", question.look(largest=True))
                self._show_verdicts(said)
        except UserError as wrong:
            self._reading.say("")
            self._problem.say(str(wrong))

    def _show(self, question: ForeseeQuestion, said: dict[str, Any]) -> None:
        self._reading.say("")
        self._answer.clear()
        with self._answer:
            with ui.element("section").classes("card"):
                Tag("h2", f"Memory of each GPU: {said['name']}")
                MemoryBars(*bar_rows(said["gpus"]))
            with ui.element("section").classes("card"):
                Tag("h2", "Time and money")
                heads, rows = look_rows(said, question.gpus)
                _table(heads, rows)
                self._verdicts = ui.element("div")
            with ui.element("section").classes("card"):
                Tag("h2", "What this rests on")
                _bullets([*said["assumptions"], *said["evidence"]])
            with ui.element("section").classes("card"):
                Tag("h2", "Manifest")
                kind = said["gpus"][0]["name"]
                text = manifest_text(question, kind, said["precision"])
                CopyBox(text, "Copy the manifest")

    def _show_verdicts(self, said: dict[str, Any]) -> None:
        with self._verdicts:
            for gpu in said["gpus"]:
                Tag("p", f"{gpu['name']}: {verdict_words(gpu)}", "soft")

    async def _plan(self, given: dict[str, Any]) -> None:
        self._form.plans(True)
        self._state.say("Planning: a few seconds …")
        try:
            said = await self._desks.plan.ask("plan", read_question(given).wish())
        except UserError as wrong:
            self._planned.clear()
            self._problem.say(str(wrong))
        else:
            self._problem.say("")
            self._show_plan(said)
        self._state.say("")
        self._form.plans(False)

    def _show_plan(self, said: dict[str, Any]) -> None:
        self._planned.clear()
        with self._planned:
            with ui.element("section").classes("card"):
                Tag("h2", f"Ways to train {said['name']} that no other beats")
                _table(said["heads"], said["rows"])
                for what in ("cheapest", "fastest"):
                    if said[what]:
                        Tag("p", f"The {what} that likely fits: {said[what]}.")
            with ui.element("section").classes("card"):
                Tag("h2", "Time and money of the ways that were looked at")
                chart = ui.echart(chart_options(said), renderer="svg").classes("chart tall")
                chart.props["role"] = "img"
                chart.props["aria-label"] = chart_words(said)
            with ui.element("section").classes("card"):
                Tag("h2", "Left out, and assumed")
                _bullets(
                    [
                        *(f"{count:,} ways: {why}" for why, count in said["left_out"].items()),
                        *said["assumptions"],
                    ]
                )


def _table(heads: list[str], rows: list[list[str]]) -> None:
    with ui.element("div").classes("scroll"), ui.element("table").classes("list cards one"):
        with ui.element("thead"), ui.element("tr"):
            for head in heads:
                Tag("th", head, scope="col")
        with ui.element("tbody"):
            for row in rows:
                with ui.element("tr"):
                    for head, cell in zip(heads, row, strict=True):
                        Tag("td", cell, data_label=head)


def _bullets(lines: list[str]) -> None:
    with ui.element("ul").classes("plain soft"):
        for line in lines:
            Tag("li", line)
