"""The output of a job's workers, live. Long ones are shown from near their end."""

from __future__ import annotations

import codecs
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.elements import LogView
from presage.web.frame import Tag, Visit

__all__ = ["Output"]

_SHOWN = 64 << 10
"""Bytes before the end that are shown at first, or after a burst."""
_BURST = 512 << 10


class Output:
    """A choice of workers, and what the chosen one writes."""

    def __init__(self, visit: Visit, path: str) -> None:
        self._visit, self._path = visit, path
        self._chosen: tuple[int, str] | None = None
        self._followed = True
        """Whether a new attempt is shown as soon as it writes."""
        self._files: dict[tuple[int, str], int] = {}
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def build(self) -> None:
        """Draw the output with what there is."""
        with ui.element("section").classes("card"):
            with ui.element("div").classes("tools"):
                Tag("h2", "Output")
                with Tag("label", "Worker"):
                    self._select = ui.element("select")
                self._select.on(
                    "change", self._choose, js_handler="(event) => emit(event.target.value)"
                )
                self._note = Tag("span", "", "soft")
            await self._look()
            self._view = LogView(await self._more())

    async def update(self) -> None:
        """Show what was written since."""
        before = self._chosen
        await self._look()
        if self._chosen != before:
            self._view.replace(await self._more())
        elif text := await self._more():
            self._view.append(text)

    async def _look(self) -> None:
        """Which outputs there are; by default the first worker of the newest attempt is shown."""
        body = await self._visit.get(f"{self._path}/log-files", max_age_s=0.8)
        files = {(item["attempt"], item["worker"]): item["bytes"] for item in body["files"]}
        names_changed = files.keys() != self._files.keys()
        self._files = files
        if files and (self._chosen is None or (self._followed and names_changed)):
            self._start(next(iter(files)))
        if names_changed:
            self._offer()

    def _start(self, chosen: tuple[int, str]) -> None:
        if chosen != self._chosen:
            self._chosen = chosen
            self._decoder.reset()
            self._offset = max(0, self._files[chosen] - _SHOWN)
            self._note.say("" if self._offset == 0 else "the end of it")

    def _offer(self) -> None:
        self._select.clear()
        with self._select:
            for attempt, worker in self._files:
                name = f"{worker}, attempt {attempt}"
                option = Tag("option", name, value=f"{attempt}/{worker}")
                if (attempt, worker) == self._chosen:
                    option.props["selected"] = True

    async def _choose(self, event: GenericEventArguments) -> None:
        attempt, _, worker = str(event.args).partition("/")
        wanted = (int(attempt) if attempt.isdigit() else 0, worker)
        if wanted in self._files:
            self._followed = wanted == next(iter(self._files))
            self._start(wanted)
            self._view.replace(await self._more())

    async def _more(self) -> str:
        if self._chosen is None:
            return ""
        size = self._files[self._chosen]
        skipped = ""
        if size - self._offset > _BURST:
            self._offset = size - _SHOWN
            skipped = "\n[…]\n"
        if size <= self._offset:
            return ""
        attempt, worker = self._chosen
        query: dict[str, Any] = {"attempt": attempt, "worker": worker, "offset": self._offset}
        read = await self._visit.read(f"{self._path}/logs", **query)
        self._offset += len(read)
        return skipped + self._decoder.decode(read)
