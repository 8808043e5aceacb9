"""What Slurm prints, as values: numbers, memory, times, GPUs, lists of hosts, and pairs of keys.

Pure functions for all versions from 21.08 on. What they do not understand is as if it were not
there, since sites configure what Slurm prints.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["expand_hosts", "gpus_of", "limit_s", "memory_mib", "number", "pairs", "tres"]

_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_/:]*)=")
_GPU = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::(\d*[A-Za-z][^:=(,]*))?(?:[:=](\d+))?")


def number(value: Any) -> float | None:
    """A number of Slurm's JSON: plain in old versions, `{set, infinite, number}` in new ones; None
    for what is not set or has no limit."""
    if isinstance(value, dict):
        known = value.get("set", True) and not value.get("infinite", False)
        return number(value.get("number")) if known else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def pairs(line: str) -> dict[str, str]:
    """The `Key=value` pairs of a line of `scontrol --oneliner`; values may hold spaces."""
    matches = list(_PAIR.finditer(line))
    ends = [match.start() for match in matches[1:]] + [len(line)]
    return {
        match.group(1): line[match.end() : end].strip()
        for match, end in zip(matches, ends, strict=True)
    }


def memory_mib(text: str) -> int:
    """Memory such as `62.50G` or `200M`, where nothing means MiB; 0 if it is none."""
    match = re.fullmatch(r"([\d.]+)([KMGTP]?)[Bnc]?", text.strip())
    return round(float(match.group(1)) * _UNITS[match.group(2)]) if match else 0


def tres(text: str) -> dict[str, str]:
    """What a list of trackable resources says, by name: `cpu=2,mem=200M,gres/gpu=4`."""
    return dict(part.partition("=")[::2] for part in text.split(",") if "=" in part)


def gpus_of(text: str) -> list[tuple[str, int]]:
    """The GPUs in a GRES or TRES text, as (type, count): `gpu:v100:4(S:0-1)`, `gres/gpu=2`. The
    type is empty where it does not say. Where TRES count the same GPUs with and without type,
    those with types are kept."""
    plain = re.sub(r"\([^)]*\)", "", text)
    entries = [(kind or "", int(count or 1)) for kind, count in _GPU.findall(plain)]
    typed = [entry for entry in entries if entry[0]]
    return typed or entries


def limit_s(text: str) -> float | None:
    """A time limit such as `1-02:03:04`, `02:03:04`, `03:04` or `30`, where a plain number is
    minutes; None if there is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, *rest = (int(part) if part else None for part in match.groups())
    parts = [part for part in rest if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:  # minutes[:seconds]
        hours, minutes, seconds = 0, *(*parts, 0)[:2]
    return float(((days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names in a list of hosts: `n[1-2,5],gpu[01-03]-ib`."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text.strip()):
        names += _expand(part)
    return tuple(name for name in names if name and name != "(null)")


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    names = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if dash:
            numbers = range(int(first), int(last) + 1)
            names += [f"{head}{n:0{len(first)}d}{end}" for n in numbers for end in _expand(tail)]
        else:
            names += [f"{head}{piece}{end}" for end in _expand(tail)]
    return names
