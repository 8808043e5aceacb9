"""What all pages have: the frame around them, who looks, and how they stay up to date."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.page import render
from presage.web.backend import COOKIE, HOME, Asker, Backend

__all__ = [
    "FAVICON",
    "VALUE",
    "Tag",
    "Tiles",
    "Visit",
    "begin",
    "choice",
    "confirm",
    "go",
    "notice",
    "show_links",
    "tell",
]

FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" '
    'rx="7" fill="#1d4ed8"/><path d="M7 22 L13 12 L18 18 L25 8" stroke="#fff" stroke-width="3" '
    'fill="none" stroke-linecap="round" stroke-linejoin="round"/></svg>'
)
VALUE = "(event) => emit(event.target.value)"
"""For fields: what was typed or chosen."""
THEME = "presage_theme"
"""The cookie with the colours that somebody chose."""

_LINKS = (
    ("/", "Cluster"),
    ("/queue", "Jobs"),
    ("/alerts", "Alerts"),
    ("/queues", "Queues"),
    ("/utilization", "Utilization"),
    ("/usage", "Usage"),
    ("/policies", "Policies"),
    ("/foresee", "Foresee"),
    ("/submit", "Submit"),
    ("/users", "Users"),
    ("/audit", "Audit"),
)
_FOR_ADMINS = ("/users", "/audit")
_shown = list(_LINKS)
_STYLE = files("presage.web").joinpath("style.css").read_text(encoding="utf-8")
_SCRIPT = files("presage.web").joinpath("frame.js").read_text(encoding="utf-8")
ui.add_head_html(f"<style>{_STYLE}</style><script>{_SCRIPT}</script>", shared=True)


class Visit(Asker):
    """Somebody looks at a page."""

    def __init__(self, backend: Backend, request: Request) -> None:
        super().__init__(backend, request.cookies.get(COOKIE, ""))
        self._request = request
        self._banner: Tag | None = None

    @contextmanager
    def page(self, title: str, here: str = "") -> Iterator[None]:
        """A page with this title; `here` is the link that leads to it."""
        ui.page_title(f"{title} · Presage")
        theme = self._request.cookies.get(THEME)
        if theme in ("light", "dark"):
            ui.dark_mode(theme == "dark")
        # Plain HTML outside of the application, so that it is there before any script has run.
        admin = self.me.get("role") == "admin"
        links = [link for link in _shown if admin or link[0] not in _FOR_ADMINS]
        shown = {"me": self.me, "home": HOME, "links": links, "here": here}
        ui.add_body_html(render("header.html", **shown, theme=theme or "auto"))
        with ui.element("div").classes("content").props("id=content tabindex=-1"):
            Tag("h1", title)
            self._banner = Tag("p", "", "banner", role="status")
            yield

    def every(self, seconds: float, update: Callable[[], Awaitable[None]]) -> ui.timer:
        """Do something again and again while the page is open. What goes wrong is said on the
        page, which keeps showing what it had."""
        fine = time.time()

        async def guarded() -> None:
            nonlocal fine
            try:
                await update()
                fine = time.time()
                self._say("")
            except ApiError as error:
                if error.status == 401:
                    go(_sign_in(self._request))
                    return
                since = time.strftime("%H:%M:%S", time.localtime(fine))
                self._say(f"{error} (this page shows what was known at {since})")

        return ui.timer(seconds, guarded, immediate=False)

    def _say(self, text: str) -> None:
        if self._banner is not None:
            self._banner.say(text)


def show_links(*paths: str) -> None:
    """Lead to these pages only."""
    _shown[:] = [link for link in _LINKS if link[0] in paths]


def go(address: str) -> None:
    """Lead the browser to another page; the library adds where the pages are."""
    ui.navigate.to(address.removeprefix(HOME))


async def begin(request: Request) -> Visit | Response:
    """Who looks at a page; an answer instead when that is not known yet."""
    visit = Visit(request.app.state.backend, request)
    try:
        visit.me = await visit.get("/me")
    except ApiError as error:
        if error.status == 401:
            return RedirectResponse(_sign_in(request), 303)
        raise
    return visit


def _sign_in(request: Request) -> str:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"{HOME}/sign-in?next={quote(wanted, safe='')}"


class Tag(ui.element):
    """A plain HTML element with a text."""

    def __init__(self, kind: str, /, text: str = "", classes: str = "", **attributes: str) -> None:
        super().__init__(kind)
        self._text = text
        self.classes(classes)
        for key, value in attributes.items():
            self.props[key.rstrip("_").replace("_", "-")] = value

    def say(self, text: str) -> None:
        """Change the text."""
        if text != self._text:
            self._text = text
            self.update()

    def enable(self, enabled: bool) -> None:
        """Let a button be pressed, or not."""
        if enabled is bool(self.props.get("disabled")):
            self.props.set_bool("disabled", not enabled)


def notice(text: str, kind: str = "note") -> Tag:
    """A sentence in a box; an `error` is read out at once."""
    return Tag("p", text, f"notice {kind}", role="alert" if kind == "error" else "note")


def choice(label: str, options: dict[str, str], chosen: str) -> ui.element:
    """A labelled field to choose one of several; its value goes to `on("change")`."""
    with Tag("label", label), ui.element("select") as select:
        for value, name in options.items():
            option = Tag("option", name, value=value)
            if value == chosen:
                option.props["selected"] = True
    return select


async def confirm(
    question: str,
    lines: Iterable[str | tuple[str, str]],
    yes: str,
    *,
    danger: bool = False,
    shows: Callable[[], None] = lambda: None,
) -> bool:
    """Ask before something is done. A line may have a mark for tests; `shows` draws what there is
    to see below them."""
    with ui.dialog() as dialog, ui.element("div").classes("sheet"):
        Tag("h2", question, id="question")
        for line in lines:
            text, mark = (line, "") if isinstance(line, str) else line
            Tag("p", text, **({"data_testid": mark} if mark else {}))
        shows()
        with ui.element("div").classes("row-of-buttons"):
            agree = Tag("button", yes, "danger" if danger else "primary", type="button")
            agree.on("click", lambda: dialog.submit(True))
            refuse = Tag("button", "Leave it as it is", type="button")
            refuse.on("click", lambda: dialog.submit(False))
    dialog.props("aria-labelledby=question")
    agreed = bool(await dialog)
    dialog.delete()
    return agreed


async def tell(doing: Awaitable[Any]) -> Any:
    """Have something done; a no is shown until somebody closes it. None when it was no."""
    try:
        return await doing
    except ApiError as error:
        ui.notify(str(error), type="negative", close_button="Close", timeout=0)
        return None


class Tiles:
    """Figures in a row: a name and a value each."""

    def __init__(self, *names: str) -> None:
        self._values: dict[str, tuple[Tag, Tag, Tag]] = {}
        with ui.element("dl").classes("tiles"):
            for name in names:
                with Tag("div") as tile:
                    Tag("dt", name)
                    self._values[name] = tile, Tag("dd", "–"), Tag("dd", "", "note")

    def show(self, values: dict[str, str], notes: dict[str, str] | None = None) -> None:
        """Put in values, and a few words below them."""
        for name, text in values.items():
            self._values[name][1].say(text)
        for name, text in (notes or {}).items():
            self._values[name][2].say(text)

    def warn(self, name: str, on: bool) -> None:
        """Colour a tile, or not."""
        tile = self._values[name][0]
        tile.classes(add="warn" if on else "", remove="" if on else "warn")
