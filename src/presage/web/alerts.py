"""Alerts: what is in trouble now, how sure that is, what speaks for it and what to do; and what is
over. It only shows; nothing is judged or acted on here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.words import sure
from presage.web.backend import HOME, part
from presage.web.elements import DataTable
from presage.web.frame import Tag, Visit, begin
from presage.web.words import clock, duration

__all__ = ["AlertCards", "TroublePanel", "kind_words"]

_MOST_CARDS = 40
_MOST_EVIDENCE = 4
_OVER = {
    "at": ("From", ""),
    "lasted": ("Lasted", "number"),
    "kind": ("What", ""),
    "subject": ("Of", ""),
    "text": ("What it was", "why"),
}
_WIDTH, _HEIGHT = 160, 28


@ui.page("/alerts")
async def alerts(request: Request) -> Response | None:
    """All alerts that one may see."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit

    async def update() -> None:
        body = await visit.get("/health/alerts", max_age_s=1.5, over=100)
        cards.show(body["open"])
        over.show([_row(one) for one in body["over"]])

    with visit.page("Alerts", "/alerts"):
        cards = AlertCards(empty="Nothing stands out: all that runs looks well.")
        with ui.element("section").classes("card"):
            Tag("h2", "Over")
            over = DataTable("Alerts that are over", _OVER, empty="None yet.")
        await update()
    visit.every(3.0, update)
    return None


def kind_words(kind: str) -> str:
    """A kind as people read it."""
    return kind.replace("_", " ").replace("gpu", "GPU").replace("not finite", "NaN")


class AlertCards:
    """A card for each open alert; drawn anew only when something is different."""

    def __init__(self, empty: str = "") -> None:
        self._empty = empty
        self._shown: Any = None
        self._place = ui.element("div").props('aria-live=polite aria-label="Open alerts"')

    def show(self, alerts: Sequence[dict[str, Any]]) -> None:
        """Show these."""
        if alerts == self._shown:
            return
        self._shown = alerts
        self._place.clear()
        with self._place:
            if not alerts and self._empty:
                with ui.element("section").classes("card"):
                    Tag("p", self._empty)
            for alert in alerts[:_MOST_CARDS]:
                _card(alert)
            if len(alerts) > _MOST_CARDS:
                Tag("p", f"{len(alerts) - _MOST_CARDS} more: presage diagnose cluster", "soft")


def _card(alert: dict[str, Any]) -> None:
    with ui.element("section").classes("card alert"):
        with ui.element("div").classes("titled"):
            Tag("h2", f"{kind_words(alert['kind'])[:1].upper()}{kind_words(alert['kind'])[1:]}")
            Tag("span", f"{sure(alert['probability'])} sure", "soft")
        with Tag("p"):
            Tag("strong", alert["subject"].partition(" ")[0] + " ")
            _name(alert)
            if alert["raised_at"] is not None:
                Tag("span", f" · since {clock(alert['raised_at'])}", "soft")
        Tag("p", alert["text"])
        with ui.element("dl").classes("evidence"):
            for one in alert["evidence"][:_MOST_EVIDENCE]:
                with ui.element("div"):
                    Tag("dt", one["series"])
                    with ui.element("dd"):
                        Tag("span", one["text"])
                        _spark(one["series"], one["values"])
        for words in alert["done"]:
            Tag("p", f"Done by itself: {words}.")
        Tag("p", f"What to do: {alert['action']}", "soft")


def _name(alert: dict[str, Any]) -> None:
    """Who it is, with a link where there is a page."""
    name = alert["subject"].partition(" ")[2]
    if alert["job"]:
        Tag("a", name, href=f"{HOME}/jobs/{part(alert['job'])}")
    else:
        Tag("span", name)


def _spark(name: str, values: Sequence[float]) -> None:
    """A small line of some values."""
    if len(values) < 3:
        return
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    across = _WIDTH / (len(values) - 1)
    points = " ".join(
        f"{k * across:.1f},{_HEIGHT - 2 - (value - low) / span * (_HEIGHT - 4):.1f}"
        for k, value in enumerate(values)
    )
    size = f"0 0 {_WIDTH} {_HEIGHT}"
    with Tag("svg", "", "spark", viewBox=size, role="img", aria_label=f"{name} over time"):
        Tag("polyline", "", points=points)
    Tag("span", f"{low:.4g} to {high:.4g}", "soft")


def _row(alert: dict[str, Any]) -> dict[str, Any]:
    lasted = (alert["cleared_at"] or alert["raised_at"]) - alert["raised_at"]
    subject: Any = alert["subject"]
    if alert["job"]:
        subject = {"text": alert["subject"], "href": f"{HOME}/jobs/{part(alert['job'])}"}
    done = "".join(f"; {words}" for words in alert["done"])
    return {
        "id": alert["id"],
        "at": clock(alert["raised_at"]),
        "lasted": {"text": duration(lasted), "sort": lasted},
        "kind": kind_words(alert["kind"]),
        "subject": subject,
        "text": f"{alert['text']}{done} ({alert['cleared']})",
    }


class TroublePanel:
    """The open alerts of a job and how likely it fails, on its page; nothing where there are none
    and nobody can say."""

    def __init__(self, visit: Visit, path: str) -> None:
        self._visit, self._path = visit, path
        self._cards = AlertCards()
        self._failure = Tag("p", "", "soft")

    async def update(self) -> None:
        """Ask again and show it."""
        body = await self._visit.get(self._path, max_age_s=3.0)
        self._cards.show(body["alerts"])
        failure = body["failure"]
        self._failure.say(f"May fail: {failure['text']}." if failure else "")
