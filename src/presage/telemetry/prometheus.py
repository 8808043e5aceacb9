"""Telemetry from a Prometheus server: a range of the past, a series for each pod.

A query gives one feature; the labels that it keeps name the pod, so queries that keep the same
labels describe the same pods. A server that is busy (5xx, 429) is asked again, with exponential
backoff. A bearer token is sent to the server alone: redirects are refused, and no message carries
it.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from presage.model.errors import TelemetryError
from presage.telemetry.series import Floats, Series, resources_of, unit_of

__all__ = [
    "MOST_POINTS",
    "TOKEN_VARIABLE",
    "Prometheus",
    "bearer_token",
    "pod_queries",
    "read_prometheus",
    "step_for",
]

MOST_POINTS = 11_000
"""Of one series in one answer; Prometheus refuses more. Longer ranges are asked for in parts."""
TOKEN_VARIABLE = "PRESAGE_PROMETHEUS_TOKEN"
_MOST_BYTES = 512 << 20
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Before a busy server is asked again."""
_LESS = "; ask for fewer pods, a shorter --since or a longer --every"
_STEPS_S = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_VALUE = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_MATCHER = re.compile(rf"\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*({_VALUE})\s*(?:,|$)", re.ASCII)


def step_for(range_s: float, most_s: float = math.inf) -> float:
    """The time from sample to sample that suits a range: one that a single answer can hold, and at
    most `most_s`."""
    fits = (step for step in _STEPS_S if range_s / step < MOST_POINTS)
    return min(next(fits, _STEPS_S[-1]), most_s)


def pod_queries(select: str = "", window_s: float = 120.0) -> dict[str, str]:
    """Queries by feature, of what `select` (label matchers such as `namespace="train"`) leaves:
    containers as cAdvisor measures them (they carry a container's name; sums over a pod do not),
    GPUs as dcgm-exporter does, and the workers of jobs as a Presage server tells at /metrics.
    `window_s` should hold four scrapes, so that a rate survives a missed one."""
    chosen = _matchers(select)
    one = ['container!=""', 'container!="POD"']

    def total(metric: str, *more: str) -> str:
        return f"sum by (namespace, pod) ({_vector(metric, *more, *chosen)})"

    def grown(metric: str, *more: str) -> str:
        vector = _vector(metric, *more, *chosen)
        return f"sum by (namespace, pod) (rate({vector}[{1000 * window_s:.0f}ms]))"

    def gpu(how: str, metric: str) -> str:
        # Where Prometheus keeps its own labels, those of the exporter are called exported_….
        own = _vector(metric, 'pod!=""', 'exported_pod=""', *chosen)
        kept = _vector(metric, 'exported_pod!=""', *map(_exported, chosen))
        for label in ("namespace", "pod"):
            kept = f'label_replace({kept}, "{label}", "$1", "exported_{label}", "(.+)")'
        return f"{how} by (namespace, pod) ({own} or {kept})"

    def worker(what: str) -> str:
        return f"max by (job_id, worker) ({_vector(f'presage_worker_{what}', *chosen)})"

    return {
        "cpu_cores": f"{grown('container_cpu_usage_seconds_total', *one)}"
        f" or {worker('cpu_cores')}",
        "memory_bytes": f"{total('container_memory_working_set_bytes', *one)}"
        f" or {worker('memory_bytes')}",
        "gpu_util_pct": f"{gpu('avg', 'DCGM_FI_DEV_GPU_UTIL')} or {worker('gpu_util_pct')}",
        "gpu_memory_bytes": f"{gpu('sum', 'DCGM_FI_DEV_FB_USED')} * 1048576"
        f" or {worker('gpu_memory_bytes')}",
        "net_tx_bytes_s": grown("container_network_transmit_bytes_total", 'pod!=""'),
        "net_rx_bytes_s": grown("container_network_receive_bytes_total", 'pod!=""'),
        "read_bytes_s": grown("container_fs_reads_bytes_total", *one),
        "write_bytes_s": grown("container_fs_writes_bytes_total", *one),
    }


def _matchers(select: str) -> list[str]:
    """The matchers in a text, which must hold nothing else."""
    matchers, end = [], 0
    while end < len(select.rstrip()):
        matcher = _MATCHER.match(select, end)
        if matcher is None:
            raise TelemetryError(
                f"'{select}' does not select pods; write label matchers with commas between, such"
                """ as namespace="train",pod=~"bert-.*\""""
            )
        matchers.append("".join(matcher.groups()))
        end = matcher.end()
    return matchers


def _vector(metric: str, *matchers: str) -> str:
    return f"{metric}{{{','.join(matchers)}}}"


def _exported(matcher: str) -> str:
    return re.sub(r"^(namespace|pod|container)\b", r"exported_\1", matcher)


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
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TelemetryError(
                f"'{self.shown}' is no address of a Prometheus; write http://host:9090"
            )
        if parts.username or parts.password:
            raise TelemetryError(
                f"leave user and password out of {self.shown}; use a token (${TOKEN_VARIABLE})"
            )

    @property
    def shown(self) -> str:
        """The address for a message, without what could be a secret."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=host, query="", fragment="").geturl()

    def range(
        self, query: str, start: float, end: float, step: float
    ) -> list[tuple[Mapping[str, str], Floats, Floats]]:
        """The series of a query from `start` to `end`, both included, with at most `MOST_POINTS`:
        labels, times and values of each."""
        body = self._ask({"query": query, "start": start, "end": end, "step": step})
        try:
            data = json.loads(body)["data"]
            if data["resultType"] == "matrix":
                return [_points(one) for one in data["result"]]
        except (ValueError, KeyError, TypeError, IndexError):
            raise TelemetryError(f"{self.shown} does not answer as a Prometheus does") from None
        raise TelemetryError(f"the query gives a {data['resultType']}, not series: {query}")

    def _ask(self, form: Mapping[str, str | float]) -> bytes:
        """The body of an answer; a server that is busy is asked again."""
        url = f"{self.url.rstrip('/')}/api/v1/query_range"
        request = Request(url, data=urlencode(form).encode("ascii"))
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        for pause_s in (*_PAUSES_S, None):
            try:
                with _OPENER.open(request, timeout=self.timeout_s) as answer:
                    body: bytes = answer.read(_MOST_BYTES + 1)
                break
            except HTTPError as error:
                with error:
                    if (error.code < 500 and error.code != 429) or pause_s is None:
                        raise TelemetryError(f"{self.shown} says {_refusal(error)}") from None
                time.sleep(pause_s)
            except (URLError, HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                says = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
                raise TelemetryError(f"{self.shown} does not answer: {says}") from None
        if len(body) > _MOST_BYTES:
            raise TelemetryError(
                f"{self.shown} answers with more than {_MOST_BYTES >> 20} MiB{_LESS}"
            )
        return body


def read_prometheus(
    server: Prometheus,
    queries: Mapping[str, str],
    start: float,
    end: float,
    step: float,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Series]:
    """The series of some queries (by feature), one for each set of labels, in the order of their
    names; `report` hears how many requests are done. A query that finds nothing is left out; when
    none finds anything, that is an error."""
    if not (step > 0 and end >= start):
        raise TelemetryError("a range needs an end that is not before its start, a step above 0")
    count = math.floor((end - start) / step + 1e-6) + 1
    parts = list(_parts(start, count, step))
    pods: dict[str, Floats] = {}
    for number, query in enumerate(queries.values()):
        for part, (first, last) in enumerate(parts, 1):
            for labels, times, values in server.range(query, first, last, step):
                pod = _pod_name(labels)
                if pod not in pods:
                    pods[pod] = np.full((count, len(queries)), np.nan)
                at = np.rint((times - start) / step).astype(np.int64)
                inside = (at >= 0) & (at < count)
                pods[pod][at[inside], number] = values[inside]
            report(number * len(parts) + part, len(queries) * len(parts))
    if not pods:
        raise TelemetryError(f"{server.shown} has no such samples; check --select and --since")
    grid: Floats = start + step * np.arange(count, dtype=np.float64)
    return [_series(pod, grid, pods[pod], tuple(queries)) for pod in sorted(pods)]


def _series(pod: str, grid: Floats, values: Floats, features: tuple[str, ...]) -> Series:
    known = np.isfinite(values)
    rows = known.any(axis=1)
    values = np.where(known, values, np.nan)[rows]
    units, resources = tuple(map(unit_of, features)), resources_of(features)
    return Series(pod, grid[rows], values, features, units, resources).measured()


def _parts(start: float, count: int, step: float) -> Iterator[tuple[float, float]]:
    """A range in parts that the server answers, on the grid of the whole, in milliseconds as the
    server counts."""
    for first in range(0, count, MOST_POINTS):
        last = min(first + MOST_POINTS, count) - 1
        yield round(start + first * step, 3), round(start + last * step, 3)


def _points(one: Any) -> tuple[Mapping[str, str], Floats, Floats]:
    times, values = zip(*one["values"], strict=True)
    return one["metric"], np.array(times, dtype=np.float64), np.array(values, dtype=np.float64)


def _pod_name(labels: Mapping[str, str]) -> str:
    """The values of the labels, in the order of their names: namespace/pod."""
    return "/".join(labels[name] for name in sorted(labels) if name != "__name__") or "all"


def _refusal(error: HTTPError) -> str:
    """What a server says about a request that it refuses, in one line."""
    try:
        says = str(json.loads(error.read(1 << 16))["error"]).splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError, OSError):
        says = str(error.reason)
    token = f"; give a token with --token-file or in ${TOKEN_VARIABLE}"
    hints = {400: "; check --select", 401: token, 403: token, 422: _LESS}
    return f"{error.code}: {says}{hints.get(error.code, '')}"


class _NoRedirects(HTTPRedirectHandler):
    """Another server gets neither the query nor the token."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = build_opener(_NoRedirects)
