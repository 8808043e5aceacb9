"""Parts of a job's page that change seldom: what was foreseen, the manifest, results."""

from __future__ import annotations

from typing import Any

import yaml
from nicegui import ui

from presage.model.words import count_text, memory, share, size_text
from presage.web.backend import HOME, part
from presage.web.elements import CopyBox, DataTable
from presage.web.frame import Tag, Visit
from presage.web.words import clock, duration

__all__ = ["ForeseenPanel", "ManifestPanel", "ResultsPanel", "manifest_yaml"]

_SHOWN_FILES = 200
_UNITS = {"s": duration, "MiB": memory, "1": share}
_FORESEEN = {
    "name": ("What", ""),
    "likely": ("Foreseen", "number"),
    "interval": ("Between (4 of 5 cases)", "number"),
    "measured": ("Measured", "number"),
    "origin": ("From", "why"),
}
_FILES = {
    "path": ("File", ""),
    "bytes": ("Size", "number"),
    "at": ("Changed", "number"),
}


def manifest_yaml(manifest: dict[str, Any]) -> str:
    """A manifest as somebody would write it."""
    text: str = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=100)
    return text


class ForeseenPanel:
    """What was foreseen, beside what was measured."""

    def __init__(self, visit: Visit, path: str) -> None:
        self._visit, self._path = visit, path
        self._card = ui.element("section").classes("card")
        with self._card:
            Tag("h2", "Foreseen and measured")
            self._table = DataTable("Estimates", _FORESEEN)
        self._card.set_visibility(False)

    async def update(self) -> None:
        """Ask again and show it."""
        body = await self._visit.get(f"{self._path}/foreseen", max_age_s=8.0)
        self._card.set_visibility(bool(body["quantities"]))
        self._table.show([_quantity(row) for row in body["quantities"]])


def _quantity(row: dict[str, Any]) -> dict[str, Any]:
    def text(value: float) -> str:
        known = _UNITS.get(row["unit"])
        return known(value) if known is not None else f"{value:.3g} {row['unit']}"

    measured = row["measured"]
    off = measured is not None and not row["p10"] <= measured <= row["p90"]
    return {
        "id": row["name"],
        "name": row["name"],
        "likely": text(row["p50"]),
        "interval": f"{text(row['p10'])} to {text(row['p90'])}",
        "measured": {
            "text": "–" if measured is None else text(measured),
            "kind": "warn" if off else "",
        },
        "origin": row["origin"] or "–",
    }


class ManifestPanel:
    """What was submitted, to copy, and the way to submit it again."""

    def __init__(self, visit: Visit, job: dict[str, Any], manifest: dict[str, Any]) -> None:
        with ui.element("details").classes("card"):
            Tag("summary", "Manifest: what was asked for")
            CopyBox(manifest_yaml(manifest), "Copy the manifest")
            if visit.may_submit():
                with Tag("p"):
                    href = f"{HOME}/submit?again={part(job['id'])}"
                    Tag("a", "Change it and submit it as a new job", "button", href=href)


class ResultsPanel:
    """What a job made: a list, one file or all of it to download."""

    def __init__(self, visit: Visit, path: str) -> None:
        self._visit, self._path = visit, path
        self._card = ui.element("section").classes("card")
        with self._card:
            with ui.element("div").classes("titled"):
                Tag("h2", "Results")
                href = f"{HOME}{path}/results.zip"
                Tag("a", "Download all (zip)", href=href, data_testid="results")
            self._words = Tag("p")
            self._table = DataTable("Files", _FILES, sortable=True)
            self._more = Tag("p", "", "soft")
        self._card.set_visibility(False)
        self._made: Any = None

    async def show(self, body: dict[str, Any]) -> None:
        """Offer what there is."""
        made = body.get("results")
        self._card.set_visibility(bool(made))
        if not made or made == self._made:
            return
        self._made = made
        words = f"{count_text(made['files'], 'file')}, {size_text(made['bytes'])}."
        if made["left_out"]:
            words += f" {count_text(made['left_out'], 'file')} left out: see the reason above."
        if made["url"]:
            words += f" Also at {made['url']}."
        self._words.say(words)
        listed = await self._visit.get(f"{self._path}/results", max_age_s=5.0, limit=_SHOWN_FILES)
        self._table.show([self._file(file) for file in listed["files"]])
        rest = listed["count"] - len(listed["files"])
        self._more.say(f"{count_text(rest, 'more file')}: all are in the zip." if rest > 0 else "")

    def _file(self, file: dict[str, Any]) -> dict[str, Any]:
        where = "/".join(part(piece) for piece in file["path"].split("/"))
        return {
            "id": file["path"],
            "path": {"text": file["path"], "href": f"{HOME}{self._path}/results/{where}"},
            "bytes": {"text": size_text(file["bytes"]), "sort": file["bytes"]},
            "at": {"text": clock(file["changed_at"]), "sort": file["changed_at"]},
        }
