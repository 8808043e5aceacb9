"""Telemetry for the tests of `presage phases` and `presage rightsize`: pods that rest and work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from typer.testing import CliRunner

from presage.cli.main import app
from presage.telemetry.rows import Row, append

EVERY_S = 15.0
MIB = float(1 << 20)


def run(*words: str | Path) -> Any:
    """The command, as people call it, in a terminal of 80 columns."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})


def refused(done: Any) -> str:
    """The one line of a command that ended with exit code 2."""
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


def made(pods: int = 6, samples: int = 200, seed: int = 0) -> pl.DataFrame:
    """Each pod rests for 12 to 25 samples, works for as many, and so on."""
    random = np.random.default_rng(seed)
    parts = []
    for pod in range(pods):
        works = np.concatenate(
            [np.full(random.integers(12, 26), turn % 2) for turn in range(samples // 12 + 1)]
        )[:samples]
        noise = random.normal(size=(2, samples))
        parts.append(
            pl.DataFrame(
                {
                    "pod": [f"worker-{pod}"] * samples,
                    "time": EVERY_S * np.arange(samples),
                    "cpu_cores": 0.2 + 3.0 * works + 0.02 * np.abs(noise[0]),
                    "memory_bytes": (400 + 500 * works + 5 * noise[1]) * MIB,
                }
            )
        )
    return pl.concat(parts)


def written(table: pl.DataFrame, path: Path) -> Path:
    """The table as CSV."""
    table.write_csv(path)
    return path


def as_rows(table: pl.DataFrame, path: Path) -> Path:
    """The table as the JSON lines that guardians write."""
    for pod, at, cores, memory in table.iter_rows():
        append(path, Row(at, pod, cpu_cores=cores, rss_mib=memory / MIB))
    return path
