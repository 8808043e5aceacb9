"""What all pages have: the frame around them, who looks, and how they stay up to date."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.page import render
from presage.web.backend import COOKIE, HOME, Asker, Backend

__all__ = ["FAVICON", "Tag", "Tiles", "Visit", "begin", "go", "notice", "show_links"]

FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" '
    'rx="7" fill="#1d4ed8"/><path d="M7 22 L13 12 L18 18 L25 8" stroke="#fff" stroke-width="3" '
    'fill="none" stroke-linecap="round" stroke-linejoin="round"/></svg>'
)
THEME = "presage_theme"
"""The cookie with the colours that somebody chose."""

_LINKS = (
    ("/", "Cluster"),
    ("/queue", "Jobs"),
    ("/utilization", "Utilization"),
    ("/policies", "Policies"),
    ("/foresee", "Foresee"),
    ("/submit", "Submit"),
)
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
        shown = {"me": self.me, "home": HOME, "links": _shown, "here": here}
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


class Tiles:
    """Figures in a row: a name and a value each."""

    def __init__(self, *names: str) -> None:
        self._values: dict[str, Tag] = {}
        with ui.element("dl").classes("tiles"):
            for name in names:
                with ui.element("div"):
                    Tag("dt", name)
                    self._values[name] = Tag("dd", "–")

    def show(self, values: dict[str, str]) -> None:
        """Put in values."""
        for name, text in values.items():
            self._values[name].say(text)
