"""Telemetry from a Prometheus server: ranges of the past as series, and a collector of what is
now.

A query gives one feature; the labels that it keeps name the pod, so queries that keep the same
labels describe the same pods. A bearer token is sent to the server alone: redirects are refused,
and no message carries it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from presage.observe.telemetry.collect import Row
from presage.observe.telemetry.series import Series, TelemetryError, assemble, unit_of

__all__ = [
    "MOST_POINTS",
    "TOKEN_VARIABLE",
    "Prometheus",
    "PrometheusCollector",
    "bearer_token",
    "pod_queries",
    "read_prometheus",
]

MOST_POINTS = 11_000
"""Of one series in one answer; Prometheus refuses more. Longer ranges are asked for in parts."""
TOKEN_VARIABLE = "PRESAGE_PROMETHEUS_TOKEN"
_MOST_BYTES = 512 << 20


def pod_queries(window: str = "2m") -> dict[str, str]:
    """Queries by feature, for pods of Kubernetes: containers as cAdvisor measures them (they carry
    a container's name; sums over a pod do not) and GPUs as dcgm-exporter does. `window` should
    hold four scrapes, so that a rate survives a missed one."""
    by = "by (namespace, pod)"
    one = '{container!="",container!="POD"}'
    return {
        "cpu_cores": f"sum {by} (rate(container_cpu_usage_seconds_total{one}[{window}]))",
        "memory_bytes": f"sum {by} (container_memory_working_set_bytes{one})",
        "net_tx_bytes_s": f"sum {by} (rate(container_network_transmit_bytes_total[{window}]))",
        "net_rx_bytes_s": f"sum {by} (rate(container_network_receive_bytes_total[{window}]))",
        "read_bytes_s": f"sum {by} (rate(container_fs_reads_bytes_total{one}[{window}]))",
        "write_bytes_s": f"sum {by} (rate(container_fs_writes_bytes_total{one}[{window}]))",
        "gpu_util_pct": f'avg {by} (DCGM_FI_DEV_GPU_UTIL{{pod!=""}})',
        "gpu_memory_bytes": f'sum {by} (DCGM_FI_DEV_FB_USED{{pod!=""}}) * 1048576',
    }


def bearer_token(file: Path | None = None) -> str | None:
    """The token in a file, else in `$PRESAGE_PROMETHEUS_TOKEN`, else None."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        says = getattr(error, "strerror", None) or "it is not ASCII text"
        raise TelemetryError(f"the token in {file} cannot be read: {says}") from None
    if not token or not token.isprintable() or " " in token:
        raise TelemetryError(f"{file} holds no token; write it on one line")
    return token


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that is asked over its HTTP API."""

    url: str
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TelemetryError(
                f"'{self._shown}' is no address of a Prometheus; write http://host:9090"
            )
        if parts.username or parts.password:
            raise TelemetryError(
                f"leave user and password out of {self._shown}; use a token (${TOKEN_VARIABLE})"
            )

    def range(self, query: str, start: float, end: float, step: float) -> list[Any]:
        """The series of a query from `start` to `end`, both included, as the API gives them:
        a list of {"metric": labels, "values": [[time, text], ...]}."""
        if not (step > 0 and end >= start):
            raise TelemetryError(
                "a range needs an end that is not before its start, a step above 0"
            )
        found: list[Any] = []
        for first, last in _parts(start, end, step):
            form: dict[str, str | float] = {
                "query": query,
                "start": first,
                "end": last,
                "step": step,
            }
            found += self._ask("query_range", form, "matrix")
        return found

    def instant(self, query: str, now: float) -> list[Any]:
        """The value of each series of a query at one time: a list of {"metric": labels, "value":
        [time, text]}."""
        return self._ask("query", {"query": query, "time": now}, "vector")

    @property
    def _shown(self) -> str:
        """The address for a message, without what could be a secret."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=host, query="", fragment="").geturl()

    def _ask(self, what: str, form: Mapping[str, str | float], kind: str) -> list[Any]:
        request = Request(
            f"{self.url.rstrip('/')}/api/v1/{what}", data=urlencode(form).encode("ascii")
        )
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as answer:
                body = answer.read(_MOST_BYTES + 1)
        except HTTPError as error:
            with error:
                raise TelemetryError(f"{self._shown} says {_refusal(error)}") from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            says = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise TelemetryError(f"{self._shown} does not answer: {says}") from None
        if len(body) > _MOST_BYTES:
            raise TelemetryError(
                f"{self._shown} answers with more than {_MOST_BYTES >> 20} MiB; ask for a shorter"
                " range, a longer step or fewer pods"
            )
        try:
            data = json.loads(body)["data"]
            found = data["result"]
            fits = data["resultType"] == kind
        except (ValueError, KeyError, TypeError):
            raise TelemetryError(f"{self._shown} does not answer as a Prometheus does") from None
        if not fits:
            raise TelemetryError(
                f"the query gives a {data['resultType']}, not series: {form['query']}"
            )
        return list(found)


def read_prometheus(
    server: Prometheus, queries: Mapping[str, str], start: float, end: float, step: float
) -> list[Series]:
    """The series of some queries (by feature), one for each set of labels. A query that finds
    nothing is left out; when none finds anything, that is an error."""
    pods: dict[str, int] = {}
    features = list(queries)
    pod_of_row: list[int] = []
    feature_of_row: list[int] = []
    times: list[float] = []
    values: list[float] = []
    for number, query in enumerate(queries.values()):
        for series in server.range(query, start, end, step):
            pod = pods.setdefault(_pod_name(series["metric"]), len(pods))
            points = series["values"]
            pod_of_row += [pod] * len(points)
            feature_of_row += [number] * len(points)
            times += [float(point[0]) for point in points]
            values += [float(point[1]) for point in points]
    if not times:
        raise TelemetryError("Prometheus has no samples of these queries in this range")
    series = assemble(
        list(pods),
        np.array(pod_of_row),
        np.array(times),
        features,
        [unit_of(name) for name in features],
        np.array(values),
        np.array(feature_of_row),
    )
    return [pod.measured() for pod in series]


class PrometheusCollector:
    """What a server knows now; a row for each set of labels."""

    def __init__(self, server: Prometheus, queries: Mapping[str, str] | None = None) -> None:
        """Without queries, `pod_queries()`."""
        self._server = server
        self._queries = dict(queries if queries is not None else pod_queries())

    def sample(self, now: float) -> list[Row]:
        """One row for each pod."""
        pods: dict[str, dict[str, float]] = {}
        for feature, query in self._queries.items():
            for found in self._server.instant(query, now):
                values = pods.setdefault(_pod_name(found["metric"]), {})
                values[feature] = float(found["value"][1])
        return [Row(pod, "", now, values) for pod, values in pods.items()]


def _parts(start: float, end: float, step: float) -> Iterator[tuple[float, float]]:
    """A range in parts that the server answers, on the grid of the whole, in milliseconds as the
    server counts."""
    steps = math.floor((end - start) / step + 1e-6)
    for first in range(0, steps + 1, MOST_POINTS):
        last = min(first + MOST_POINTS - 1, steps)
        yield round(start + first * step, 3), round(start + last * step, 3)


def _pod_name(labels: Mapping[str, str]) -> str:
    """The values of the labels, in the order of their names: namespace/pod."""
    return "/".join(labels[name] for name in sorted(labels) if name != "__name__") or "all"


def _refusal(error: HTTPError) -> str:
    """What a server says about a request that it refuses, in one line."""
    try:
        says = str(json.loads(error.read(1 << 16))["error"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError, OSError):
        says = str(error.reason)
    hint = f"; give a token in ${TOKEN_VARIABLE}" if error.code in (401, 403) else ""
    return f"{error.code}: {says}{hint}"


class _NoRedirects(HTTPRedirectHandler):
    """Another server gets neither the query nor the token."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = build_opener(_NoRedirects)
