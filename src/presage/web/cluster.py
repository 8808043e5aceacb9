"""The first page: what runs, what waits and why, what is wasted; then the nodes, their devices,
and who is on them."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.model.words import count_text, memory, share, short_duration
from presage.web.backend import HOME, part
from presage.web.elements import ClusterMapElement, CopyBox, DataTable
from presage.web.frame import Tag, Tiles, Visit, begin, confirm, notice, tell
from presage.web.words import amount, eta_short, risk_text

__all__: list[str] = []

_TOP = 8
_RUNNING = {
    "job": ("Job", "name"),
    "owner": ("Owner", "name"),
    "gpus": ("GPUs", "number"),
    "since": ("For", "number"),
    "done": ("Done", "bar"),
}
_WAITING = {
    "job": ("Job", "name"),
    "gpus": ("GPUs", "number"),
    "since": ("Waits", "number"),
    "eta": ("In", "number"),
    "why": ("Why", "why"),
}
_SHARES = {
    "job": ("Job", "name"),
    "worker": ("Worker", ""),
    "request": ("Asked", "number"),
    "limit": ("Limit", "number"),
    "got": ("Got", "number"),
    "waited": ("Waited", "number"),
    "memory": ("Memory", "number"),
}
_MOST_SHARES = 40


@ui.page("/")
async def cluster(request: Request) -> Response | None:
    """The cluster at a glance, and the map."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit

    async def warn() -> None:
        texts = (await visit.get("/alerts", max_age_s=20.0))["alerts"]
        alerts.say(" ".join(texts))

    with visit.page("Cluster", "/"):
        alerts = Tag("p", "", "banner", role="alert")
        try:
            about = await visit.get("/overview", max_age_s=1.5, top=_TOP)
            data = await visit.get("/cluster-map", max_age_s=5.0)  # it is renewed at once
        except ApiError as error:
            notice(str(error), "error")
            return None
        glance = _Glance(visit, about, str(request.base_url))
        with ui.element("section").classes("card"):
            Tag("h2", "Nodes")
            chart = ClusterMapElement(
                data, visit.may_operate(), lambda *node: _drain(visit, *node)
            )
        shares = _Shares()
        shares.show((await visit.get("/shares", max_age_s=1.5))["shares"])
        await warn()

    async def update() -> None:
        chart.show(await visit.get("/cluster-map", max_age_s=1.5))
        glance.show(await visit.get("/overview", max_age_s=1.5, top=_TOP))
        shares.show((await visit.get("/shares", max_age_s=1.5))["shares"])

    visit.every(2.0, update)
    visit.every(30.0, warn)
    return None


class _Shares:
    """Enforced shares of GPUs, where there are any."""

    def __init__(self) -> None:
        with ui.element("section").classes("card") as self._card:
            Tag("h2", "Shares of GPUs")
            self._table = DataTable("Enforced shares, the one that waits most first", _SHARES)

    def show(self, shares: list[dict[str, Any]]) -> None:
        """Put in what is so now."""
        self._card.set_visibility(bool(shares))
        ordered = sorted(shares, key=lambda one: (-(one["waited"] or 0.0), one["job"]))
        self._table.show([self._row(one) for one in ordered[:_MOST_SHARES]])

    def _row(self, one: dict[str, Any]) -> dict[str, Any]:
        parts = {
            key: "–" if one[key] is None else share(one[key])
            for key in ("request", "limit", "got", "waited")
        }
        held, most = (
            "–" if one[key] is None else memory(one[key])
            for key in ("memory_mib", "memory_limit_mib")
        )
        name = {"job": _link(one["job"]), "worker": one["worker"]}
        row = {"id": f"{one['job']}/{one['worker']}", **name, **parts}
        return {**row, "memory": held if most == "–" else f"{held} of {most}"}


class _Glance:
    """Tiles, what runs, what waits, what is wasted; on an empty server, how to begin."""

    def __init__(self, visit: Visit, about: dict[str, Any], address: str) -> None:
        self._on_gpus = bool(about["gpus"]["all"])
        unit = "GPUs" if self._on_gpus else "Cores"
        self._names = (f"{unit} held", f"{unit} held, not used", f"{unit} free")
        more = ("Cores held",) if self._on_gpus and about["cpus"]["all"] else ()
        self._tiles = Tiles(
            *self._names, "Jobs that run", "Jobs that wait", "Lost today", *more, "Nodes up"
        )
        self._begin = _first_steps(visit, address)
        with ui.element("div").classes("glance") as self._lists:
            with ui.element("section").classes("card"):
                _titled("Runs", "/queue?show=running", "all that run")
                self._running = DataTable(
                    "The largest jobs that run", _for(_RUNNING, unit), empty="Nothing runs."
                )
            with ui.element("section").classes("card"):
                _titled("Waits", "/queue?show=waiting", "all that wait")
                self._waiting = DataTable(
                    "Jobs that wait, the longest first",
                    _for(_WAITING, unit),
                    empty="Nobody waits.",
                )
            with ui.element("section").classes("card"):
                _titled("Wasted", "/usage", "usage")
                self._wasted = ui.element("div")
        self._words: list[tuple[str, str]] | None = None
        self.show(about)

    def show(self, about: dict[str, Any]) -> None:
        """Put in what is so now."""
        empty = not about["any_job"] and not any(about["jobs"].values())
        self._begin.set_visibility(empty)
        self._lists.set_visibility(not empty)
        self._show_tiles(about)
        now = about["at"]
        self._running.show([self._run(job, now) for job in about["running"]])
        self._waiting.show([self._wait(job, now) for job in about["waiting"]])
        words = self._waste(about)
        if words != self._words:
            self._words = words
            self._wasted.clear()
            with self._wasted:
                for text, job in words:
                    with Tag("p", "" if job else text):
                        if job:
                            Tag("a", job, href=f"{HOME}/jobs/{part(job)}")
                            Tag("span", f" {text}")

    def _show_tiles(self, about: dict[str, Any]) -> None:
        gpus, cpus, nodes, today = (about[key] for key in ("gpus", "cpus", "nodes", "today"))
        held, idle, free = self._names
        one = gpus if self._on_gpus else cpus
        values = {
            held: f"{_figure(one['held'])} of {_figure(one['all'])}",
            free: _figure(one["free"]),
            "Jobs that run": f"{about['jobs']['running']:,}",
            "Jobs that wait": f"{about['jobs']['waiting']:,}",
            "Nodes up": f"{nodes['up']:,} of {sum(nodes.values()):,}",
        }
        notes = {held: share(one["held"] / one["all"]) if one["all"] else ""}
        if self._on_gpus:
            values[idle] = _figure(gpus["idle"]) if gpus["measured"] else "–"
            unseen = max(0.0, gpus["held"] - gpus["measured"])
            notes[idle] = f"{_figure(unseen)} not measured" if unseen >= 0.5 else ""
            values["Lost today"] = f"{_figure(today['lost_gpu_h'])} GPU h"
            if cpus["all"]:
                values["Cores held"] = f"{_figure(cpus['held'])} of {_figure(cpus['all'])}"
        else:
            used = cpus["used"]
            values[idle] = "–" if used is None else _figure(max(0.0, cpus["held"] - used))
            unused = max(0.0, today["held_cpu_h"] - today["used_cpu_h"])
            values["Lost today"] = f"{_figure(unused)} core h"
            notes["Lost today"] = "held and not used"
        out = [f"{nodes[key]} {key}" for key in ("draining", "down") if nodes[key]]
        notes["Nodes up"] = ", ".join(out)
        self._tiles.show(values, notes)
        self._tiles.warn(idle, bool(self._on_gpus and gpus["idle"]))

    def _run(self, job: dict[str, Any], now: float) -> dict[str, Any]:
        size = self._asks(job)
        idle = job["idle_gpus"] or 0
        return {
            "id": job["id"],
            "job": _link(job["id"]),
            "owner": job["owner"],
            "gpus": {
                "text": f"{size} ({idle} idle)" if idle else size,
                "kind": "bad" if idle else "",
            },
            "since": short_duration(now - job["since"]),
            "done": {"text": share(job["done"]), "share": job["done"]} if job["done"] else "",
        }

    def _wait(self, job: dict[str, Any], now: float) -> dict[str, Any]:
        return {
            "id": job["id"],
            "job": _array_link(job) if job["array"] else _link(job["id"]),
            "gpus": self._asks(job),
            "since": short_duration(now - job["submitted_at"]),
            "eta": eta_short(job["eta_s"]),
            "why": {"text": job["reason"]["text"], "title": job["reason"]["text"]},
        }

    def _asks(self, job: dict[str, Any]) -> str:
        if self._on_gpus and not job["gpus"]:
            return f"{_figure(job['cpus'])} cores" if job["cpus"] else "–"
        return _figure(job["gpus"] if self._on_gpus else job["cpus"])

    def _waste(self, about: dict[str, Any]) -> list[tuple[str, str]]:
        """Sentences; some are about a job."""
        today, lines = about["today"], list[tuple[str, str]]()
        for job in about["idle"][:4]:
            if self._on_gpus:
                what = f"{job['idle_gpus']} of {_figure(job['gpus'])} GPUs idle"
            else:
                what = f"uses {_figure(job['used_cpus'])} of {_figure(job['cpus'])} cores"
            lines.append((f"{what} ({job['owner']})", job["id"]))
        if not lines:
            held = about["gpus"]["held"] and not about["gpus"]["measured"]
            unseen = "Nobody measures the GPUs that are held." if held else "Nothing held is idle."
            lines.append((unseen if self._on_gpus else "Cores that are held are used.", ""))
        if self._on_gpus:
            lines.append(
                (
                    f"Today: {_figure(today['lost_gpu_h'])} GPU hours lost to runs that came to "
                    f"nothing, {_figure(today['idle_gpu_h'])} measured idle, of "
                    f"{_figure(today['held_gpu_h'])} held.",
                    "",
                )
            )
        else:
            lines.append(
                (
                    f"Today: {_figure(today['used_cpu_h'])} of {_figure(today['held_cpu_h'])} "
                    "core hours that were held were used.",
                    "",
                )
            )
        return lines


def _for(columns: dict[str, tuple[str, str]], unit: str) -> dict[str, tuple[str, str]]:
    return {**columns, "gpus": (unit, "number")}


def _titled(title: str, path: str, words: str) -> None:
    with ui.element("div").classes("titled"):
        Tag("h2", title)
        Tag("a", words, href=f"{HOME}{path}")


def _link(job: str) -> dict[str, str]:
    return {"text": job, "href": f"{HOME}/jobs/{part(job)}", "title": job}


def _array_link(job: dict[str, Any]) -> dict[str, str]:
    """The jobs of an array wait as one."""
    text = f"{job['jobs']} of {job['array']}"
    return {"text": text, "href": f"{HOME}/arrays/{part(job['array'])}", "title": text}


def _figure(value: float | None) -> str:
    return "–" if value is None else amount(round(value, 2))


def _first_steps(visit: Visit, address: str) -> ui.element:
    """How the first job is submitted, to copy."""
    url = address.rstrip("/").removesuffix(HOME)
    known = f"export PRESAGE_URL={url}\n"
    if visit.me["name"] != "local" or visit.me["created_at"]:
        known += "export PRESAGE_TOKEN=...      # the token that you signed in with\n"
    with ui.element("div").classes("grid first") as steps:
        with ui.element("section").classes("card"):
            Tag("h2", "No job yet: submit the first one")
            Tag("p", "In a shell, on any machine that reaches this server:", "soft")
            CopyBox(f"pip install presage\n{known}presage run -- echo hello", "Copy the commands")
            Tag("p", "What is to run for long goes into a manifest:", "soft")
            CopyBox(
                "presage init            # writes presage.yaml\npresage submit presage.yaml\n"
                "presage top             # what runs and what waits",
                "Copy the commands",
            )
        with ui.element("section").classes("card"):
            Tag("h2", "Or from here, or from Python")
            if visit.may_submit():
                with Tag("p"):
                    Tag("a", "Write a manifest on this page", href=f"{HOME}/submit")
                    Tag("span", "; it needs a name and a command.")
            with Tag("p"):
                Tag("a", "Foresee what a model will need", href=f"{HOME}/foresee")
                Tag("span", " before you ask for GPUs.")
            CopyBox(
                "import presage\n\nwith presage.Client() as server:\n"
                '    job = server.submit("presage.yaml")\n    print(job.wait().status)',
                "Copy the script",
            )
    return steps


async def _drain(visit: Visit, node: str, state: str) -> None:
    """Drain a node after saying what moves, or let it take work again."""
    path = f"/nodes/{part(node)}"
    if state == "draining":
        if await confirm(f"Let {node} take work again?", (), "Undrain it"):
            await tell(visit.post(f"{path}/undrain"))
        return
    about = await tell(visit.get(f"{path}/drain", max_age_s=0.0))
    if about is None:
        return
    jobs = about["jobs"]
    lines = [f"It gets no new work, and {count_text(len(jobs), 'job')} would move:"]
    lines += [f"{job['id']} ({job['owner']}). {risk_text(job)}" for job in jobs[:12]]
    if len(jobs) > 12:
        lines.append(f"and {len(jobs) - 12} more.")
    if not jobs:
        lines = ["Nothing runs on it. It gets no new work until it is undrained."]
    if await confirm(f"Drain {node}?", lines, "Drain it", danger=bool(jobs)):
        await tell(visit.post(f"{path}/drain"))
