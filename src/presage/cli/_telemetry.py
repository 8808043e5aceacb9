"""Where commands take telemetry from: files, or a Prometheus server. Thin: `telemetry` reads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import floor, inf
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from presage.cli._input import seconds
from presage.cli._output import progress, say
from presage.model.errors import UserError
from presage.page import counted, duration_text
from presage.telemetry.readers import read_telemetry
from presage.telemetry.series import Series

__all__ = ["FromPrometheus", "Select", "Since", "Telemetry", "TelemetrySource", "TokenFile"]

_RATE_S = 120.0
"""Rates of counters are over this long, or from sample to sample if that is longer."""

Telemetry = Annotated[
    Path | None,
    typer.Argument(
        help="A .csv, .parquet or .jsonl file, a directory or a pattern.", show_default=False
    ),
]
FromPrometheus = Annotated[
    str | None,
    typer.Option("--prometheus", help="Take telemetry from the Prometheus at this address."),
]
Select = Annotated[
    str | None,
    typer.Option(help="Of Prometheus, these pods: 'namespace=\"train\"'.", show_default="all"),
]
Since = Annotated[
    str | None,
    typer.Option(help="Of Prometheus, this long until now: 12h, 7d.", show_default="1d"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with the bearer token.", show_default="$PRESAGE_PROMETHEUS_TOKEN if set"
    ),
]


@dataclass(frozen=True, slots=True)
class TelemetrySource:
    """What somebody named: files, or a server with what to ask it."""

    files: Path | None
    server: str | None = None
    select: str | None = None
    since: str | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.files is None) == (self.server is None):
            raise UserError("give TELEMETRY (files) or --prometheus URL, one of the two")
        if self.server is None:
            for name in ("select", "since", "token_file"):
                if getattr(self, name) is not None:
                    option = f"--{name.replace('_', '-')}"
                    raise UserError(f"{option} belongs to --prometheus; files are read whole")

    @property
    def name(self) -> str:
        """For titles."""
        if self.files is not None:
            return self.files.name
        return " ".join(filter(None, (urlsplit(self.server or "").netloc, self.select)))

    def read(self, every_s: float | None = None, most_s: float = inf) -> list[Series]:
        """The series, of a server with a sample every so many seconds; without that, with what
        suits the range and is at most `most_s`."""
        if self.files is not None:
            return read_telemetry(self.files)
        from presage.telemetry import prometheus

        range_s = seconds(self.since or "1d", "--since")
        step_s = every_s or prometheus.step_for(range_s, most_s)
        server = prometheus.Prometheus(self.server or "", prometheus.bearer_token(self.token_file))
        queries = prometheus.pod_queries(self.select or "", max(_RATE_S, step_s))
        end = floor(time.time() / step_s) * step_s
        with progress(f"asking {server.shown}") as report:
            series = prometheus.read_prometheus(
                server, queries, end - range_s, end, step_s, report
            )
        pods, samples = counted(len(series), "pod"), sum(map(len, series))
        say(f"{pods}, {samples:,} samples, one every {duration_text(step_s)}, from {server.shown}")
        return series
