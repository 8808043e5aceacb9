"""A real Spark for tests: PySpark in local mode, a process of its own (`tools/engine-spark`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["missing_spark", "run_spark"]

VERSION = "4.3.0"
"""What `tools/engine-spark` brings."""

_SESSION = """
from pyspark.sql import SparkSession

def start(cores, conf={}):
    settings = {
        "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4", "spark.eventLog.compress": "false",
    } | conf
    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()

"""


def _home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    engines = os.environ.get("PRESAGE_ENGINES") or f"{cache}/presage/engines"
    return Path(engines) / f"spark-{VERSION}"


def missing_spark() -> str | None:
    """Why there is no Spark here; None if there is."""
    if shutil.which("java") is None:
        return "java is not on PATH: run tools/engines spark"
    if not (_home() / "pyspark").is_dir():
        return f"there is no Spark {VERSION} in {_home().parent}: run tools/engines spark"
    return None


def run_spark(
    script: str, directory: Path, *, timeout_s: float = 600.0, short: bool = False
) -> list[Path]:
    """Run a script in a process of its own, where `start(cores, conf)` gives a session, another
    once that is stopped; the logs they wrote, in that order. `short`: a JVM for seconds compiles
    less and collects in one thread, for half the CPU time."""
    logs = directory / "events"
    logs.mkdir(parents=True, exist_ok=True)
    before = set(logs.iterdir())
    program = directory / "program.py"
    program.write_text(_SESSION + script)
    said = ["spark.eventLog.enabled=true", f"spark.eventLog.dir={logs.as_uri()}"]
    arguments = " ".join(f"--conf {one}" for one in said)
    env = {
        **os.environ,
        "PYTHONPATH": str(_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell",
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"} if short else {}),
    }
    subprocess.run(
        [sys.executable, program],
        cwd=directory, env=env, check=True, capture_output=True, timeout=timeout_s,
    )  # fmt: skip
    return sorted(set(logs.iterdir()) - before)
