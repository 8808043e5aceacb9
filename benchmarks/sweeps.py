"""A sweep of 200 jobs from one manifest: the time to submit it, to list it and to find the best.

    python -m benchmarks.sweeps [--jobs 200] [--json]

A real server on a new data directory with SQLite, and real `presage` commands, start of Python
included. `accepted` is the request alone, the median of five, once the server has loaded all of
its parts. `presage submit` is measured on a server without other work, and once more while
it works on other sweeps. CPU time, of the server for `accepted` and of the command for the rest,
says more than wall time while others use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
import psutil

_TIMES = 5

_MANIFEST = """\
name: tune
command: "true ${{seed}}"
resources: {{cpus: 0.01}}
sweep:
  grid: {{seed: 1..{jobs}}}
  at_once: 1
objective: {{metric: val_loss}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        figures = measure(Path(home), asked.jobs)
    if asked.json:
        print(json.dumps(figures, indent=2))
        return
    for name, (wall_s, cpu_s) in figures.items():
        print(f"{name:20} {wall_s:6.2f} s, {cpu_s:5.2f} s of CPU")


def measure(home: Path, jobs: int) -> dict[str, tuple[float, float]]:
    """Seconds of each part: wall time and CPU time."""
    presage = [sys.executable, "-m", "presage"]
    manifest = home / "work" / "presage.yaml"
    manifest.parent.mkdir()
    manifest.write_text(_MANIFEST.format(jobs=jobs))
    log = home / "serve.log"
    argv = [*presage, "serve", "--port", "0", "--nodes", "1x4", "--data", str(home / "data")]
    with log.open("w") as out:
        server = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        url = _address(log, server)
        env = {**os.environ, "PRESAGE_URL": url}
        text = manifest.read_bytes()
        process = psutil.Process(server.pid)
        _settle(process)
        accepted = [_accepted(url, text, jobs, process) for _ in range(_TIMES)]
        walls, cpus = zip(*accepted, strict=True)
        figures = {"accepted": (median(walls), median(cpus))}

        def run(name: str, *words: str) -> str:
            began, before = time.perf_counter(), _children_s()
            done = subprocess.run([*presage, *words], env=env, check=True, capture_output=True)
            figures[name] = time.perf_counter() - began, _children_s() - before
            return done.stdout.decode().strip()

        run("submit beside others", "submit", str(manifest))
        _stop(url, process)
        array = run("presage submit", "submit", str(manifest))
        run("presage ps", "ps")
        for command in ("ps", "best", "stop"):
            run(f"presage {command} ARRAY", command, array)
        return figures
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def _accepted(url: str, text: bytes, jobs: int, server: psutil.Process) -> tuple[float, float]:
    """Submit the sweep; what that took."""
    headers = {"Content-Type": "application/yaml"}
    began, before = time.perf_counter(), sum(server.cpu_times()[:2])
    answer = httpx.post(f"{url}/api/v1/jobs", content=text, headers=headers, timeout=60)
    wall_s, cpu_s = time.perf_counter() - began, sum(server.cpu_times()[:2]) - before
    assert answer.json()["jobs"] == jobs, answer.text
    return wall_s, cpu_s


def _stop(url: str, server: psutil.Process) -> None:
    """End every sweep, and wait until the server has nothing to do."""
    for one in httpx.get(f"{url}/api/v1/arrays").json()["arrays"]:
        httpx.post(f"{url}/api/v1/arrays/{one['id']}/stop", timeout=60)
    _settle(server)


def _settle(server: psutil.Process) -> None:
    """Wait until a server has loaded all of its parts: it hardly works any more."""
    until = time.monotonic() + 60
    while time.monotonic() < until and server.cpu_percent(1.0) > 10:
        pass


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Where the server listens, once it decides."""
    until = time.monotonic() + 120
    while time.monotonic() < until and server.poll() is None:
        for word in log.read_text().split():
            address = word.rstrip("/.,;")
            if address.startswith("http://"):
                try:
                    if httpx.get(f"{address}/readyz").status_code == 200:
                        return address
                except httpx.TransportError:
                    pass
        time.sleep(0.1)
    raise SystemExit(f"no server: {log.read_text()}")


if __name__ == "__main__":
    main()
