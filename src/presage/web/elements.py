"""The few elements of our own; each is a small Vue component beside it, and needs no network."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

__all__ = [
    "ClusterMapElement",
    "CopyBox",
    "DataTable",
    "ForeseeForm",
    "JobTable",
    "LogView",
    "ManifestForm",
    "MemoryBars",
    "map_changes",
]


class ClusterMapElement(ui.element, component="components/cluster_map.js"):
    """Nodes as boxes, devices as cells; for operators with a button that drains one."""

    def __init__(
        self, data: dict[str, Any], operator: bool, drain: Callable[[str, str], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._data = data
        self.props["operator"] = operator

        async def wanted(event: GenericEventArguments) -> None:
            name, state = event.args
            await drain(str(name), str(state))

        self.on("drain", wanted)
        # As text: the library would wrap every list of a value, to see whether it changes.
        self.props["data"] = json.dumps(data)

    def show(self, data: dict[str, Any]) -> None:
        """Send what is different from what it shows."""
        old, self._data = self._data, data
        if data is old:
            return
        changes = map_changes(old, data)
        if changes is None:
            self.run_method("replace", data)
        elif any(changes):
            self.run_method("patch", *changes)


Changes = tuple[list[dict[str, Any]], list[int], dict[int, dict[str, Any]]]
_latest: tuple[Any, Any, Changes | None] = (None, None, None)


def map_changes(old: dict[str, Any], new: dict[str, Any]) -> Changes | None:
    """Jobs that came, numbers of those that went, and nodes that changed, by their place; None
    when the nodes are not the same ones. Pages that show the same have it worked out once."""
    global _latest
    if _latest[0] is old and _latest[1] is new:
        return _latest[2]
    changes: Changes | None = None
    if [node["name"] for node in old["nodes"]] == [node["name"] for node in new["nodes"]]:
        before = {job["number"] for job in old["jobs"]}
        now = {job["number"] for job in new["jobs"]}
        pairs = zip(old["nodes"], new["nodes"], strict=True)
        changes = (
            [job for job in new["jobs"] if job["number"] not in before],
            sorted(before - now),
            {place: node for place, (was, node) in enumerate(pairs) if was != node},
        )
    _latest = (old, new, changes)
    return changes


class DataTable(ui.element, component="components/data_table.js"):
    """Rows of figures. `columns` are keys with a name and a kind: `number`, `state`, `bar`,
    `why`, `actions` or nothing; a cell is a text, or a dictionary with `text` and `href`, `share`
    or `sort`."""

    def __init__(
        self,
        caption: str,
        columns: dict[str, tuple[str, str]],
        *,
        empty: str = "Nothing.",
        sortable: bool = False,
        tight: bool = False,
        act: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        named = [{"key": k, "name": name, "kind": kind} for k, (name, kind) in columns.items()]
        self.props["columns"], self.props["rows"] = named, []
        self.props["caption"], self.props["empty"] = caption, empty
        self.props["sortable"], self.props["tight"] = sortable, tight
        if act is not None:
            wanted = act

            async def take(event: GenericEventArguments) -> None:
                name, row = event.args
                await wanted(str(name), str(row))

            self.on("act", take)

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Show these rows; each has an `id`."""
        if rows != self.props["rows"]:
            self.props["rows"] = rows


class JobTable(ui.element, component="components/job_table.js"):
    """A page of jobs."""

    def __init__(self, caption: str) -> None:
        super().__init__()
        self.props["rows"] = []
        self.props["caption"] = caption

    def show(self, rows: list[dict[str, Any]], *, eta: bool) -> None:
        """Show these jobs; a column for estimates where the API has them."""
        if rows != self.props["rows"] or eta != self.props.get("eta", False):
            with self.props.suspend_updates():
                self.props["rows"] = rows
                self.props["eta"] = eta
            self.update()


class LogView(ui.element, component="components/log_view.js"):
    """The output of a worker."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.props["text"] = text

    def append(self, text: str) -> None:
        """More of it."""
        self.run_method("append", text)

    def replace(self, text: str) -> None:
        """Another output."""
        self.run_method("replace", text)


class ManifestForm(ui.element, component="components/manifest_form.js"):
    """A manifest that is typed, pasted or read from a file."""

    def __init__(self, initial: str, submitted: Callable[[str], Any]) -> None:
        super().__init__()
        self.props["initial"] = initial

        async def take(event: GenericEventArguments) -> None:
            await submitted(str(event.args))

        self.on("manifest", take)


Handler = Callable[[dict[str, Any]], Awaitable[None]]


class ForeseeForm(ui.element, component="components/foresee_form.js"):
    """What is to be foreseen; its state is in the address of the page."""

    def __init__(
        self,
        initial: dict[str, Any],
        usual: dict[str, Any],
        asked: Handler,
        planned: Handler,
    ) -> None:
        super().__init__()
        self.props["initial"], self.props["usual"] = initial, usual
        self.props["names"], self.props["gpus"] = [], []
        self.props["planning"] = False
        for event, handler in (("question", asked), ("plan", planned)):
            self.on(event, _with_state(handler))

    def offer(self, names: dict[str, list[str]]) -> None:
        """Models and GPUs to choose from."""
        self.props["names"], self.props["gpus"] = names["models"], names["gpus"]

    def plans(self, busy: bool) -> None:
        """Show whether a plan is being made."""
        self.props["planning"] = busy


def _with_state(handler: Handler) -> Callable[[GenericEventArguments], Awaitable[None]]:
    async def take(event: GenericEventArguments) -> None:
        await handler(event.args if isinstance(event.args, dict) else {})

    return take


class MemoryBars(ui.element, component="components/memory_bars.js"):
    """Memory of GPUs as stacked bars against their cards."""

    def __init__(self, gpus: list[dict[str, Any]], legend: list[dict[str, Any]]) -> None:
        super().__init__()
        self.props["gpus"], self.props["legend"] = gpus, legend


class CopyBox(ui.element, component="components/copy_box.js"):
    """A text with a button that copies it."""

    def __init__(self, text: str, label: str) -> None:
        super().__init__()
        self.props["text"], self.props["label"] = text, label
