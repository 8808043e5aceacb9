"""The dashboard in Chromium: first paint with 1,000 nodes and 10,000 jobs, and 20 open pages.

    python -m benchmarks.dashboard [--nodes 1000] [--jobs 10000] [--pages 20] [--seconds 30]
        [--runs 5] [--json]

The server is the real one, except that nothing is executed: runs start at once, and a few end
every second, so that there is something new to show. A paint is timed from the navigation on; a
page is complete when the map or the first page of jobs is in the document. Each run is a new
browser profile without a cache. CPU is that of the server's process, without any page and with
all of them open.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from presage.model import event as ev
from presage.model.cluster import Node

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
]
ENDS_A_SECOND = 5


class Pretending:
    """An executor whose runs start at once; a few of them end every second."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._nodes = nodes
        self._facts: list[ev.Fact] = []
        self._running: list[tuple[str, int]] = []
        self._random = random.Random(0)
        self._ended = time.monotonic()
        self._awake = threading.Event()

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def launch(self, decision: ev.Launch) -> None:
        self._facts.append(ev.JobStarted(decision.job, decision.attempt))
        self._running.append((decision.job, decision.attempt))

    def stop(self, decision: ev.Stop) -> None:
        self._facts.append(ev.JobExited(decision.job, decision.attempt, ev.Outcome.STOPPED))

    def poll(self, now: float) -> list[ev.Fact]:
        due = int((time.monotonic() - self._ended) * ENDS_A_SECOND)
        if due:
            self._ended = time.monotonic()
        for _ in range(min(due, len(self._running) - 1)):
            run = self._running.pop(self._random.randrange(len(self._running)))
            self._facts.append(ev.JobExited(*run, ev.Outcome.SUCCEEDED))
        facts, self._facts = self._facts, []
        return facts

    def wait(self, timeout_s: float) -> bool:
        woke = bool(self._facts) or self._awake.wait(min(timeout_s, 0.5))
        self._awake.clear()
        return woke

    def wake(self) -> None:
        self._awake.set()

    def close(self) -> None:
        pass


def serve(data: Path, port: int, nodes: int) -> None:
    """A server that pretends to run jobs, in this process."""
    import uvicorn

    from presage.control.site import service
    from presage.control.site.settings import Settings
    from presage.policy import registry
    from presage.server.app import create_app
    from presage.sim.clusters import read_cluster

    cluster = read_cluster(f"{nodes}x8:64c:512g")
    service.make_executor = lambda _: Pretending(cluster)  # type: ignore[assignment,attr-defined]
    settings = Settings(data=data, nodes=cluster, policy=registry.NAMED["fifo"], port=port)
    uvicorn.run(create_app(settings), port=port, log_level="warning", access_log=False)


@contextmanager
def served(home: Path, nodes: int) -> Iterator[tuple[str, psutil.Process]]:
    """That server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.dashboard", "--serve", str(port)]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data", str(home / "data"), "--nodes", str(nodes)],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                if httpx.get(f"{url}/healthz").json()["leading"]:
                    break
            except httpx.TransportError:
                assert process.poll() is None, (home / "server.log").read_text()
            time.sleep(0.1)
        yield url, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def fill(url: str, jobs: int) -> None:
    """Submit jobs of 50 people in 5 queues."""
    sizes = random.Random(0)
    with httpx.Client(base_url=url, timeout=60.0) as http:
        for number in range(jobs):
            body = {
                "name": f"train-{number % 97}",
                "command": "python train.py",
                "queue": f"team-{number % 5}",
                "workers": sizes.choice([1, 1, 2, 4]),
                "resources": {"gpus": sizes.choice([1, 2, 4, 8]), "cpus": 2, "memory": "8Gi"},
            }
            answer = http.post("/api/v1/jobs", json=body)
            assert answer.status_code == 201, answer.text


COMPLETE = {"/ui/": ".node", "/ui/queue": "table.list tbody tr"}


def paints(browser: Any, url: str, runs: int) -> dict[str, Any]:
    """First paint and completeness of pages, in milliseconds."""
    found: dict[str, Any] = {}
    for path, complete in COMPLETE.items():
        first, whole = [], []
        for _ in range(runs):
            context = browser.new_context()
            page = context.new_page()
            page.add_init_script(
                "new MutationObserver((_, seen) => { if (document.querySelector("
                f"{json.dumps(complete)})) {{ window.complete = performance.now(); "
                "seen.disconnect(); } }).observe(document, {subtree: true, childList: true})"
            )
            page.goto(url + path)
            page.wait_for_function("window.complete !== undefined")
            page.wait_for_function(
                "performance.getEntriesByName('first-contentful-paint').length > 0"
            )
            first.append(
                page.evaluate(
                    "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                )
            )
            whole.append(page.evaluate("window.complete"))
            context.close()
        found[path] = {
            "first_paint_ms": {"median": round(median(first)), "max": round(max(first))},
            "complete_ms": {"median": round(median(whole)), "max": round(max(whole))},
        }
    return found


def cpu(process: psutil.Process, seconds: float) -> float:
    """Share of a core that the server uses, in percent."""
    before, began = process.cpu_times(), time.perf_counter()
    time.sleep(seconds)
    after, took = process.cpu_times(), time.perf_counter() - began
    return 100 * (after.user + after.system - before.user - before.system) / took


def open_pages(
    browser: Any, url: str, process: psutil.Process, pages: int, seconds: float
) -> dict[str, Any]:
    """CPU of the server with pages open: the map, the queue, jobs and utilization in turn."""
    alone = cpu(process, seconds)
    job = httpx.get(f"{url}/api/v1/jobs", params={"status": "PROCESSING", "limit": 1}).json()
    paths = ["/ui/", "/ui/queue", f"/ui/jobs/{job['jobs'][0]['id']}", "/ui/utilization"]
    context = browser.new_context()
    opened = []
    for number in range(pages):
        page = context.new_page()
        page.goto(url + paths[number % len(paths)])
        opened.append(page)
    first = opened[0]
    tile = first.locator(".tiles dd").nth(3)
    before, wait = tile.inner_text(), time.perf_counter()
    first.wait_for_function(
        "before => document.querySelectorAll('.tiles dd')[3].textContent !== before", arg=before
    )
    news = time.perf_counter() - wait
    time.sleep(3)
    busy = cpu(process, seconds)
    context.close()
    return {
        "pages": pages,
        "cpu_without_pages_pct": round(alone, 1),
        "cpu_with_pages_pct": round(busy, 1),
        "rss_mib": process.memory_info().rss >> 20,
        "something_new_after_s": round(news, 1),
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.data, given.serve, given.nodes)
        return
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not on PATH")
    with tempfile.TemporaryDirectory() as home, served(Path(home), given.nodes) as (url, process):
        fill(url, given.jobs)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            result = {
                "nodes": given.nodes,
                "jobs": given.jobs,
                **paints(browser, url, given.runs),
                "open": open_pages(browser, url, process, given.pages, given.seconds),
            }
            browser.close()
    if given.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:12} {value}")


if __name__ == "__main__":
    main()
