"""A watched cluster in a browser and as JSON: what `control.watch` knows, read-only, on this
machine alone. No users: it says what `squeue` or `kubectl get pods` say to whoever runs it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse

from presage import __version__
from presage.control.watch.answers import WatchedCluster
from presage.control.watch.busy import Busy
from presage.model.words import duration, interval, share
from presage.page import render
from presage.server import problems
from presage.server.guard import Guard

__all__ = ["create_watch_app"]


def create_watch_app(
    known: WatchedCluster, busy: Callable[[], Busy | None] = lambda: None
) -> FastAPI:
    """The application; `busy` says how busy GPUs are, where somebody measures that."""
    app = FastAPI(title="Presage watch", version=__version__, docs_url="/docs", redoc_url=None)
    problems.install(app)
    app.add_middleware(Guard, most=lambda path: 1 << 16, open_to_all=lambda: True)

    @app.get("/api/v1/watch")
    def overview() -> JSONResponse:
        """The cluster at a glance, everything that waits, and how well starts are foreseen."""
        return JSONResponse(known.overview(time.time(), busy()))

    @app.get("/api/v1/watch/explain")
    def explain(job: str) -> JSONResponse:
        """Why a job is where it is, when it starts, and what would help."""
        return JSONResponse(known.explain(job, time.time()))

    @app.get("/", response_class=HTMLResponse)
    def page() -> HTMLResponse:
        """The same for people."""
        return HTMLResponse(_page(known.overview(time.time(), busy())))

    return app


def _page(body: dict[str, object]) -> str:
    return render("watch.html", title=f"{body['kind']} {body['cluster']}", words=_WORDS, **body)


def _starts(eta: dict[str, float | None] | None) -> str:
    if eta is None or eta["p10"] is None:
        return ""
    high = eta["p90"]
    return f"{duration(eta['p10'])} or more" if high is None else interval(eta["p10"], high)


_WORDS = {
    "duration": lambda value: "–" if value is None else duration(value),
    "share": lambda value: "–" if value is None else share(value),
    "starts": _starts,
}
