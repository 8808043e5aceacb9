"""Start the control plane, have three sample trainings run, and show them; `make up` calls this.

On a terminal the server stays until Ctrl-C. With CI=true, or without a terminal, it ends when the
trainings have ended, and the exit code says whether all of them are COMPLETED.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from presage.client import Client
from presage.model.errors import PresageError

ROOT = Path(__file__).resolve().parent.parent
PORT = os.environ.get("PRESAGE_PORT", "8265")
URL = f"http://127.0.0.1:{PORT}"
DATA = ROOT / "build" / "server"


def main() -> int:
    """The exit code."""
    os.environ["PRESAGE_URL"] = URL
    DATA.parent.mkdir(exist_ok=True)
    program = Path(sys.executable).with_name("presage")
    environment = os.environ | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    log = DATA.parent / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [program, "serve", "--port", PORT, "--data", str(DATA)],
            env=environment,
            stdout=file,
            stderr=file,
        )
    try:
        if not _answers(server):
            sys.stderr.write(log.read_text())
            return 1
        manifest = "torch.yaml" if find_spec("torch") else "presage.yaml"
        _say_dashboard()
        print(f"The control plane answers at {URL} (its log: {log.relative_to(ROOT)})", flush=True)
        good = _show(ROOT / "examples" / "train" / manifest)
        print(f"The control plane answers at {URL}; its API is described at {URL}/docs")
        stays = sys.stdout.isatty() and os.environ.get("CI") != "true"
        if stays:
            print(f"Try: export PRESAGE_URL={URL}; presage ps --all    Stop it with Ctrl-C.")
        _say_dashboard()
        if stays:
            server.wait()
        return 0 if good else 1
    except KeyboardInterrupt:
        return 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def _say_dashboard() -> None:
    """Where to look, if there is a dashboard."""
    if find_spec("nicegui") is not None:
        print(f"The dashboard: {URL}/ui/", flush=True)


def _answers(server: subprocess.Popen[bytes]) -> bool:
    """Wait until the server takes jobs; False when it ended."""
    with Client(patience_s=60) as client:
        while server.poll() is None:
            with suppress(PresageError):
                client.nodes()
                return True
            time.sleep(0.1)
    return False


def _show(manifest: Path) -> bool:
    """Run three trainings, say what becomes of them; whether all went well."""
    with Client() as client:
        jobs = [client.submit(manifest) for _ in range(3)]
        said: dict[str, str] = {}
        began = time.monotonic()
        while True:
            for job in jobs:
                info = job.refresh().info
                done = (info.progress or {}).get("done")
                text = info.status + (f" {done:4.0%}" if done else "")
                if info.status in ("QUEUED", "FAILED") and info.reason.text:
                    text += f"  ({info.reason.text})"
                if said.get(job.id) != text:
                    said[job.id] = text
                    print(f"{time.monotonic() - began:6.1f} s  {job.id}  {text}", flush=True)
            if all(job.info.ended_at is not None for job in jobs):
                break
            time.sleep(0.5)
        last = [line for line in jobs[0].logs() if line.strip()][-2:]
        print("\n".join([f"The last lines of {jobs[0].id}:", *(f"    {line}" for line in last)]))
        return all(job.status == "COMPLETED" for job in jobs)


if __name__ == "__main__":
    sys.exit(main())
