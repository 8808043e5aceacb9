"""How figures and times are written, and what is worked out from series; nothing here draws."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from presage.model.words import amount, duration, short_duration

__all__ = [
    "amount",
    "asked_text",
    "clock",
    "duration",
    "eta_age",
    "eta_short",
    "eta_text",
    "gpu_figures",
    "outlook_lines",
    "risk_text",
    "where",
    "why",
    "worker_bounds",
]


def clock(at: float | None) -> str:
    """A moment, in the time of the server."""
    return "–" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def eta_text(job: dict[str, Any]) -> str:
    """When a job that waits is expected to start; empty when the API does not say."""
    eta = job.get("eta_s")
    if not eta or job["status"] != "QUEUED" or eta["p10"] is None:
        return ""
    low, mid, high = (
        "later than can be foreseen" if eta[key] is None else duration(float(eta[key]))
        for key in ("p10", "p50", "p90")
    )
    return f"{mid} ({low} to {high})"


def eta_short(eta: dict[str, Any] | None) -> str:
    """The middle of an estimate, for a narrow column."""
    if not eta or eta["p10"] is None:
        return "–"
    return "later" if eta["p50"] is None else short_duration(float(eta["p50"]))


def eta_age(job: dict[str, Any]) -> str:
    """How old that estimate is."""
    return f"estimated {duration(float(job['eta_s']['age_s']))} ago" if eta_text(job) else ""


def outlook_lines(about: dict[str, Any]) -> list[str]:
    """What an explanation says of who is ahead and what would help."""
    if about["status"] != "QUEUED":
        return ["It does not wait any more."]
    ahead = about["ahead"] or 0
    jobs = "1 job of its queue waits" if ahead == 1 else f"{ahead} jobs of its queue wait"
    lines = [f"{jobs} before it."]
    if about["helps"] is None:
        return [*lines, "What would help was not worked out in time; ask again."]
    for option in about["helps"]:
        eta = eta_text({"status": "QUEUED", "eta_s": option["eta_s"]})
        lines.append(f"Starts in {eta or 'a moment'} {option['change']}.")
    if not about["helps"]:
        lines.append("Nothing that was tried lets it start notably earlier.")
    return lines


def risk_text(job: dict[str, Any]) -> str:
    """What stopping a job now would lose; empty when it does not run."""
    risk = job.get("at_risk")
    return f"{risk['text'][0].upper()}{risk['text'][1:]}." if risk else ""


def worker_bounds(manifest: dict[str, Any]) -> tuple[int, int] | None:
    """Between how many workers a job may be scaled; None when their number is fixed."""
    roles = manifest.get("roles")
    holder = next(iter(roles.values())) if roles else manifest
    least, dots, most = str(holder.get("workers", 1)).partition("..")
    return (int(least), int(most)) if dots and least.isdigit() and most.isdigit() else None


def asked_text(manifest: dict[str, Any]) -> str:
    """What a manifest asks for, in a few words: `4 × (1 GPU, 8 CPUs, 32Gi)`."""
    roles = manifest.get("roles") or {"worker": manifest}
    parts = []
    for name, role in roles.items():
        needs = role.get("resources") or {}
        words = [
            f"{_plain(needs[key])} {unit}{'' if _plain(needs[key]) == '1' else 's'}"
            for key, unit in (("gpus", "GPU"), ("cpus", "CPU"))
            if needs.get(key)
        ]
        words += [str(needs["memory"])] if needs.get("memory") else []
        each = ", ".join(words) or "nothing counted"
        count = str(role.get("workers", 1)).replace("..", "–")
        kind = f" {name}" if len(roles) > 1 else ""
        parts.append(f"{count}{kind} × ({each})" if count != "1" or kind else each)
    return " + ".join(parts)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def where(job: dict[str, Any]) -> str:
    """The nodes of a job, the first few by name."""
    nodes: Sequence[str] = job["nodes"]
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(nodes[:3]) + more


def why(job: dict[str, Any], waits: dict[str, Any] | None = None) -> str:
    """What a row says of a job: what it waits for, where it runs, or how it ended."""
    if waits is not None and job["status"] == "QUEUED":
        return str(waits["reason"]["text"])
    text = str(job["reason"]["text"])
    return " · ".join(part for part in (job["stage"], text, where(job)) if part)


def gpu_figures(series: dict[str, list[float]]) -> dict[str, float]:
    """Of a utilization history: the mean share of GPUs that is held, GPU-hours that were idle
    while jobs waited, and the mean share of asked cores and memory that was not used."""
    at = series["at"]
    held = idle_h = total = 0.0
    for k in range(len(at) - 1):
        span = min(at[k + 1] - at[k], 900.0)  # a longer gap is a server that was down
        held += series["gpus_held"][k] * span
        total += series["gpus"][k] * span
        if series["pending"][k] > 0:
            idle_h += max(0.0, series["gpus"][k] - series["gpus_held"][k]) * span / 3600
    return {
        "held": held / total if total else 0.0,
        "idle_h": idle_h,
        "cpus_unused": _unused(series["cpus_asked"], series["cpus_used"]),
        "memory_unused": _unused(series["memory_asked_mib"], series["memory_used_mib"]),
    }


def _unused(asked: Sequence[float], used: Sequence[float]) -> float:
    total = sum(asked)
    lost = sum(max(0.0, a - u) for a, u in zip(asked, used, strict=True))
    return lost / total if total else 0.0
