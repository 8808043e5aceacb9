"""A sweep of 200 jobs from one manifest: the time to submit it, to list it and to find the best.

    python -m benchmarks.sweeps [--jobs 200] [--json]

A real server on a new data directory with SQLite, and real `presage` commands, start of Python
included; `accepted` is the request alone.
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

import httpx

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
    for name, seconds in figures.items():
        print(f"{name:20} {seconds:6.2f} s")


def measure(home: Path, jobs: int) -> dict[str, float]:
    """Seconds of each part."""
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
        headers = {"Content-Type": "application/yaml"}
        began = time.perf_counter()
        answer = httpx.post(f"{url}/api/v1/jobs", content=text, headers=headers, timeout=60)
        accepted = time.perf_counter() - began
        assert answer.json()["jobs"] == jobs, answer.text
        figures = {"accepted": accepted}
        array = answer.json()["id"]
        for name, words in (
            ("presage submit", ["submit", str(manifest)]),
            ("presage ps", ["ps"]),
            ("presage ps ARRAY", ["ps", array]),
            ("presage best ARRAY", ["best", array]),
            ("presage stop ARRAY", ["stop", array]),
        ):
            began = time.perf_counter()
            subprocess.run([*presage, *words], env=env, check=True, capture_output=True)
            figures[name] = time.perf_counter() - began
        return figures
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


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
