"""A server is up soon: what it can do without comes later, and nobody is sent away meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from presage.control.site.service import Service
from presage.control.site.settings import Settings
from presage.policy import registry
from presage.server.front import Front
from presage.sim.clusters import read_cluster
from tests.server.kit import PATIENCE_S, eventually
from tests.waiting import run_apart

LATER = (
    *("alembic", "fastapi", "httpx", "nicegui", "polars", "ray", "rich", "scipy", "sklearn"),
    *("starlette", "torch"),
)
"""Packages that take long to import, and that a server needs only after it decides."""

HEALTH = {"status": "ok", "leading": False, "leader": None}

START = f"""
import sys
from pathlib import Path

import presage.cli.main
import presage.cli.serve
from presage.policy import registry
from presage.server.front import Front
from presage.control.site.service import Service
from presage.control.site.settings import Settings
from presage.sim.clusters import read_cluster

data, nodes, policy = Path(sys.argv[1]), read_cluster("2x4"), registry.NAMED["fifo"]
service = Service(Settings(data=data, nodes=nodes, policy=policy))
Front(service)
service.live.start()
assert service.live.leading.wait(400)
print(*sorted({LATER!r} & sys.modules.keys()))
service.close()
"""


def test_a_start_imports_only_what_it_needs(tmp_path: Path) -> None:
    """Counted, not timed: `python -m benchmarks.control_plane start` measures."""
    script = START.replace(repr(LATER), repr(set(LATER)))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_health_is_told_before_the_api_is_there_and_other_requests_wait(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data", read_cluster("2x4"), registry.NAMED["fifo"])
    service = Service(settings)

    async def ask() -> None:
        front = Front(service)
        door = httpx.ASGITransport(app=front)
        async with httpx.AsyncClient(transport=door, base_url="http://127.0.0.1") as http:
            refused = await http.get("/readyz")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "not_leading"
            assert (await http.get("/healthz")).json() == HEALTH
            service.start(asyncio.get_running_loop())
            assert await asyncio.to_thread(service.live.leading.wait, PATIENCE_S)
            early = [await http.get(path) for path in ("/healthz", "/readyz")]
            assert front._api is None
            assert (await http.get("/api/v1/jobs")).json() == {"jobs": [], "next": None}
            assert front._api is not None
            later = [await http.get(path) for path in ("/healthz", "/readyz")]
        leads = HEALTH | {"leading": True, "leader": settings.url}
        assert [answer.json() for answer in (*early, *later)] == [leads] * 4
        await front._open.aclose()

    try:
        run_apart(ask())
    finally:
        service.close()


def test_a_server_whose_api_cannot_be_loaded_ends(tmp_path: Path) -> None:
    broken = tmp_path / "fastapi"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('broken on purpose')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    words = ["-m", "presage", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert "the API could not be loaded" in done.stderr


@contextmanager
def serving(tmp_path: Path, **env: str) -> Iterator[tuple[httpx.Client, Path]]:
    """A server of its own, from the moment on at which it can be connected to, and its log. In the
    processes of the other tests, the pages are imported already."""
    log = tmp_path / "log"
    words = ["-m", "presage", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, *words], env={**os.environ, **env}, stderr=out
        ) as process,
    ):
        try:

            def said() -> list[str]:
                assert process.poll() is None, log.read_text()
                return re.findall(r"answers at (\S+)", log.read_text())

            with httpx.Client(base_url=eventually(said)[0], timeout=PATIENCE_S) as http:
                yield http, log
        finally:
            process.kill()


def test_a_page_that_is_asked_for_at_once_waits_for_the_dashboard(tmp_path: Path) -> None:
    with serving(tmp_path) as (http, _):
        page = http.get("/ui/")
        assert page.status_code == 200
        assert "Presage" in page.text


def test_a_dashboard_that_cannot_be_loaded_leaves_the_api_alone(tmp_path: Path) -> None:
    broken = tmp_path / "nicegui"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('broken on purpose')")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with serving(tmp_path, PYTHONPATH=path) as (http, log):
        assert http.get("/ui/").status_code == 500
        assert http.get("/api/v1/jobs").status_code == 200
        assert "broken on purpose" in log.read_text()
