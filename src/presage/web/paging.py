"""A list that comes in pages, with filters in its address: what the pages of jobs and of the audit
log have in common."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.frame import VALUE, Tag, choice

__all__ = ["Paged"]


class Paged:
    """Filters, and which page is shown. `update` asks again and shows it."""

    def __init__(self, wanted: dict[str, str], update: Callable[[], Awaitable[None]]) -> None:
        self.wanted = wanted
        """What each filter holds."""
        self._update = update
        self._before: list[int | None] = [None]
        """Where each page up to this one begins."""
        self._next: int | None = None

    @property
    def start(self) -> int | None:
        """Where this page begins; None for the first."""
        return self._before[-1]

    @property
    def number(self) -> int:
        """Pages before this one."""
        return len(self._before) - 1

    def field(self, label: str, key: str) -> None:
        """A filter to type in."""
        with Tag("label", label):
            field = Tag("input", type="search", maxlength="200", value=self.wanted[key])
        field.on("change", self._choose(key, None), js_handler=VALUE)

    def select(self, label: str, key: str, options: dict[str, str]) -> None:
        """A filter to choose from."""
        select = choice(label, options, self.wanted[key])
        select.on("change", self._choose(key, options), js_handler=VALUE)

    def buttons(self, label: str) -> None:
        """The way to the other pages."""
        with ui.element("nav").classes("row-of-buttons").props(f'aria-label="{label}"'):
            self._newer = Tag("button", "Newer", type="button").on("click", self._go_newer)
            self._older = Tag("button", "Older", type="button").on("click", self._go_older)

    def shown(self, following: int | None) -> None:
        """A page is there; `following` is where the next one begins."""
        self._next = following
        self._newer.enable(self.number > 0)
        self._older.enable(following is not None)

    def _choose(self, key: str, options: dict[str, str] | None) -> Any:
        async def chosen(event: GenericEventArguments) -> None:
            value = str(event.args).strip()[:200]
            if options is not None and value not in options:
                return
            self.wanted[key] = value
            self._before = [None]
            query = urlencode({name: text for name, text in self.wanted.items() if text})
            ui.run_javascript(f"history.replaceState(null, '', {json.dumps('?' + query)})")
            await self._update()

        return chosen

    async def _go_newer(self) -> None:
        if len(self._before) > 1:
            self._before.pop()
            await self._update()

    async def _go_older(self) -> None:
        if self._next is not None:
            self._before.append(self._next)
            await self._update()
