"""How people write amounts: `2..8` workers, `512Mi`, `90m`, `at epoch 30: 4 workers`.

Each function takes what stood in the manifest and gives the one form that Presage keeps, or says
in a ValueError what to write instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import urlsplit

__all__ = [
    "AUTO",
    "MOST_WORKERS",
    "duration_s",
    "elastic_plan",
    "git_ref",
    "git_url",
    "gpus",
    "memory",
    "memory_mib",
    "memory_or_auto",
    "named_urls",
    "pattern",
    "shown",
    "url",
    "worker_span",
    "workers",
]

AUTO = "auto"
"""To be foreseen when the job is submitted."""
MOST_WORKERS = 10_000
_MOST_MIB = 1 << 30  # a PiB
_LONGEST_S = 366 * 86_400.0
_MOST_GPUS = 1024
_LONGEST_URL = 4096

_SPAN = re.compile(r"(\d{1,9})(?:\s*\.\.\s*(\d{1,9}))?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kKMGTP])(i?)B?", re.ASCII)
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|min|m|h|d)\s*", re.ASCII)
_AT_EPOCH = re.compile(r"\s*(?:at\s+)?epoch\s+(\d{1,9})\s*", re.ASCII | re.IGNORECASE)
_TARGET = re.compile(r"\s*(\d{1,9})(?:\s+workers?)?\s*", re.ASCII | re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_POWER = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def shown(value: object) -> str:
    """A value in a message: short, in quotes."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def workers(value: object) -> int | str:
    """`4`, or `2..8`; a span of one size is that size."""
    span = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        least = most = value
    elif span:
        least, most = int(span[1]), int(span[2] or span[1])
    else:
        raise ValueError(f"write a number such as 4, or a span such as 2..8, not {shown(value)}")
    if not 1 <= least <= most <= MOST_WORKERS:
        raise ValueError(
            f"give 1 to {MOST_WORKERS:,} workers, the smaller number first, not {shown(value)}"
        )
    return least if least == most else f"{least}..{most}"


def worker_span(value: int | str) -> tuple[int, int]:
    """Least and most workers of what `workers` gave."""
    if isinstance(value, int):
        return value, value
    least, _, most = value.partition("..")
    return int(least), int(most)


def memory(value: object) -> str:
    """`2Gi`, `1.5G` or `512Mi` as MiB, rounded up: `2048Mi`."""
    match = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"write memory with its unit, such as 512Mi or 2Gi, not {shown(value)}")
    number, unit, binary = match.groups()
    unit_bytes = (1024 if binary else 1000) ** _POWER[unit.upper()]
    mib = math.ceil(Fraction(number) * unit_bytes / (1 << 20))
    if not 1 <= mib <= _MOST_MIB:
        raise ValueError(f"give at least a byte and at most a PiB, not {shown(value)}")
    return f"{mib}Mi"


def memory_or_auto(value: object) -> str:
    """The same, or `auto`."""
    return AUTO if value == AUTO else memory(value)


def memory_mib(value: str | None) -> int:
    """MiB of what `memory` gave; nothing is 0, and so is what is still to be foreseen."""
    return 0 if value is None or value == AUTO else int(value.removesuffix("Mi"))


def duration_s(value: object) -> float:
    """`90s`, `2h`, `1h30m`, or a number of seconds, as seconds."""
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= _LONGEST_S else math.inf
    elif isinstance(value, str):
        parts = list(_PART.finditer(value.strip()[:200]))
        if parts and "".join(part[0] for part in parts) == value.strip():
            seconds = sum(float(part[1]) * _SECONDS[part[2]] for part in parts)
    if math.isnan(seconds):
        raise ValueError(f"write a time such as 90s, 10m, 2h or 1h30m, not {shown(value)}")
    if not 0 <= seconds <= _LONGEST_S:
        raise ValueError(f"give a time between 0 and 366 days, not {shown(value)}")
    return seconds


def gpus(value: object) -> int | float | str:
    """Whole GPUs (`2`), or a part of one (`0.5`); `auto` as it is."""
    if value == AUTO:
        return AUTO
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"write whole GPUs (2) or a part of one (0.5), not {shown(value)}")
    if value == 0 or (1 <= value <= _MOST_GPUS and value == int(value)):
        return int(value)
    if not 0.001 <= value < 1:
        raise ValueError(
            f"give at most {_MOST_GPUS} whole GPUs (2) or a part of one (0.5), not {shown(value)}"
        )
    return round(float(value), 3) if value < 0.9995 else 1


def url(value: str) -> str:
    """A path or an fsspec URL. Names and passwords do not belong in one."""
    if not value.strip() or len(value) > _LONGEST_URL or not value.isprintable():
        raise ValueError("write a path or a URL such as s3://bucket/data")
    try:
        has_password = "://" in value and urlsplit(value.rpartition("::")[2]).password is not None
    except ValueError:
        raise ValueError(f"{shown(value)} is not a URL") from None
    if has_password:
        raise ValueError("a URL cannot hold a password; name it under secrets instead")
    return value


def git_url(value: str) -> str:
    """The address of a Git repository: a URL, a path, or `user@host:path`."""
    value = url(value)
    if value.startswith("-") or "::" in value:
        raise ValueError("write the address of a repository, such as https://host/team/repo.git")
    return value


def git_ref(value: str) -> str:
    """A branch, a tag or a commit."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/@+-]*", value) or ".." in value:
        raise ValueError(f"write a branch, a tag or a commit, not {shown(value)}")
    return value


def pattern(value: str) -> str:
    """A pattern as in .gitignore."""
    from pathspec import GitIgnoreSpec

    try:
        if not GitIgnoreSpec.from_lines([value]).patterns[0].regex:
            raise ValueError
    except (ValueError, IndexError):
        text = f"write a pattern such as '*.pt' or 'out/**', not {shown(value)}"
        raise ValueError(text) from None
    return value


def named_urls(value: object) -> Any:
    """One URL or several as a mapping; without a name, one is called by its last part."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return value
    named: dict[str, str] = {}
    for item in value:
        last = re.split(r"[/\\]", item.split("?")[0].rstrip("/"))[-1]
        name = re.sub(r"[^a-z0-9._-]", "-", last.lower()).lstrip("-._")[:63] or "data"
        if name in named:
            raise ValueError(f"two URLs would be called {name}; write data as a mapping of names")
        named[name] = item
    return named


def elastic_plan(value: object) -> Any:
    """`at epoch 30: 4 workers`, as a mapping, a list or a line, as a list of epoch and workers,
    by epoch; what is something else is left for the schema to refuse."""
    if isinstance(value, str):
        value = [value]
    entries: list[object] = []
    if isinstance(value, Mapping):
        entries = [{key: item} for key, item in value.items()]
    elif isinstance(value, list):
        entries = value
    else:
        return value
    steps = [_plan_step(entry) for entry in entries]
    if all(isinstance(step, Mapping) and isinstance(step.get("epoch"), int) for step in steps):
        steps.sort(key=lambda step: int(step["epoch"]))
    return steps


def _plan_step(entry: object) -> Any:
    if isinstance(entry, str):
        when, _, target = entry.partition(":")
        entry = {when: target}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        return entry
    ((key, target),) = entry.items()
    if key in ("epoch", "workers"):
        return entry
    at = _AT_EPOCH.fullmatch(key) if isinstance(key, str) else None
    text = str(target) if isinstance(target, int) and not isinstance(target, bool) else target
    count = _TARGET.fullmatch(text) if isinstance(text, str) else None
    if not at or not count:
        raise ValueError(f"write 'at epoch 30: 4 workers', not {shown(key)}: {shown(target)}")
    return {"epoch": int(at[1]), "workers": int(count[1])}
