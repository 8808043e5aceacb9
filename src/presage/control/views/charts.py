"""What pages draw of a job: what its workers used, what it reported, and whose output is there."""

from __future__ import annotations

from typing import Any

from presage.control.charts import chart_lines, worker_order, worker_series
from presage.control.site.service import Service
from presage.store.records import JobRow, User

__all__ = ["known_runs", "log_files_of", "reported", "used_by_workers"]


_MOST_WORKERS = 64


_HOLDS = ("DOWNLOADING", "PROCESSING", "STORING")


def known_runs(service: Service, me: User) -> set[str]:
    """Jobs that hold something and that a user may know of."""
    whose = {"team": me.team} if me.team else {"owner": me.name}
    known: set[str] = set()
    after = None
    while True:
        rows = service.store.jobs.list(statuses=_HOLDS, limit=1000, after=after, **whose)
        known |= {row.id for row in rows}
        if len(rows) < 1000:
            return known
        after = rows[-1].seq


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def used_by_workers(
    service: Service, row: JobRow, attempt: int | None, points: int
) -> dict[str, Any]:
    """What the workers of a job used over time; without an attempt, of all of them."""
    home = service.layout.telemetry(row.id, 1).parent
    numbers = sorted(int(p.stem) for p in home.glob("*.jsonl") if p.stem.isdigit())
    wanted = [number for number in numbers if attempt in (None, number)][-16:]
    series: list[dict[str, Any]] = []
    for number in wanted:
        series += worker_series(number, home / f"{number}.jsonl", points)
    shown = series[-_MOST_WORKERS:]
    lines = chart_lines(service.knowledge, row.id, "limits")
    held = [line for line in lines if attempt in (None, line["attempt"])]
    limits = {
        "at": [line["at"] for line in held],
        "cpu_cores": [line["cpu_milli"] / 1000 for line in held],
        "memory_mib": [line["memory_mib"] for line in held],
        "why": [line["why"] for line in held],
    }
    return {"series": shown, "left_out": len(series) - len(shown), "limits": limits}


def reported(service: Service, row: JobRow) -> dict[str, Any]:
    """What a job reported and how many workers it had, over time."""
    lines = chart_lines(service.knowledge, row.id, "progress")
    reports = [line.get("progress") or {} for line in lines]
    names = list(dict.fromkeys(name for report in reports for name in report))
    return {
        "at": [line["at"] for line in lines],
        "attempt": [line["attempt"] for line in lines],
        "workers": [line["workers"] for line in lines],
        "metrics": {name: [_number(report.get(name)) for report in reports] for name in names},
    }


def log_files_of(service: Service, row: JobRow) -> list[dict[str, Any]]:
    """Whose output is there, and how long it is, the newest attempt first."""
    home = service.layout.logs(row.id, 1).parent
    logs = []
    for path in home.glob("*/*.log"):
        if path.parent.name.isdigit():
            logs.append((int(path.parent.name), path.stem, path.stat().st_size))
    logs.sort(key=lambda item: (-item[0], worker_order(item[1])))
    return [{"attempt": a, "worker": w, "bytes": size} for a, w, size in logs]
