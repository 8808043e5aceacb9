"""`pip install presage` without an extra: what needs none works, the rest names the command that
installs what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXTRAS = (
    "alembic",
    "fastapi",
    "fsspec",
    "kubernetes",
    "nicegui",
    "onnx",
    "psycopg",
    "pynvml",
    "ray",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "starlette",
    "torch",
    "uvicorn",
)

LIGHT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""

API = """
import presage

trace = presage.make_trace("poisson", jobs=30, seed=1, cluster="2x4")
print(presage.compare(trace, cluster="2x4", policies=["fifo", "srtf", "colocate"]).table)
print(presage.predict("zoo:resnet50", batch=8, gpu="a100-40g").fits)
"""

COMMAND = """
from presage.cli.main import main

main()
"""


def light(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIGHT + script, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_api_simulates_and_predicts() -> None:
    done = light(API)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("True\n")


def test_commands_simulate(tmp_path: Path) -> None:
    trace = str(tmp_path / "jobs.parquet")
    made = light(COMMAND, "trace", "make", "--jobs", "20", "--cluster", "2x4", "--out", trace)
    assert made.returncode == 0, made.stderr
    done = light(COMMAND, "simulate", trace, "--cluster", "2x4", "--policy", "fifo,backfill")
    assert done.returncode == 0, done.stderr
    assert "backfill" in done.stdout


def test_a_server_says_what_to_install() -> None:
    done = light(COMMAND, "serve")
    assert done.returncode == 2
    assert "pip install 'presage[server]'" in done.stderr
    assert "Traceback" not in done.stderr
