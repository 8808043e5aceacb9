"""A real Spark for tests: PySpark in local mode, a process of its own (`tools/engine-spark`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["missing_spark", "run_spark"]

VERSION = "4.3.0"
"""What `tools/engine-spark` brings."""

_SESSION = """
from pyspark.sql import SparkSession

settings = {
    "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "4", "spark.eventLog.compress": "false",
} | @CONF@
builder = SparkSession.builder
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
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
    script: str,
    directory: Path,
    *,
    cores: int,
    conf: Mapping[str, str] = {},
    timeout_s: float = 600.0,
    short: bool = False,
) -> Path:
    """Run a script in which `spark` is a session with so many cores; the log that it wrote.
    `short`: a JVM for seconds compiles less and collects in one thread, for half the CPU time."""
    logs = directory / "events"
    logs.mkdir(parents=True, exist_ok=True)
    before = set(logs.iterdir())
    program = directory / "program.py"
    session = _SESSION.replace("@CONF@", repr(dict(conf)))
    program.write_text(f"{session}{script}\nspark.stop()\n")
    said = [f"spark.master=local[{cores}]", "spark.eventLog.enabled=true"]
    said += [f"spark.eventLog.dir={logs.as_uri()}"]
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
    (log,) = set(logs.iterdir()) - before
    return log
