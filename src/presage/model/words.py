"""How times, amounts and shares are written for people: the one place that says so.

Standard library only. Knows nothing of jobs; who needs a sentence puts it together.
"""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = [
    "amount",
    "count_text",
    "duration",
    "interval",
    "memory",
    "moment",
    "share",
    "short_duration",
    "size_text",
    "sure",
]

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_CALENDAR = 1e8
"""Seconds from here on are a date; fewer count from the begin of something."""


def duration(seconds: float) -> str:
    """A time in the unit that suits it: `0.4 ms`, `45 s`, `12 min`, `3.5 h`, `4 d`."""
    size, unit = _unit(seconds)
    return f"{_digits(max(0.0, seconds) / size)} {unit}"


def short_duration(seconds: float) -> str:
    """The same as one word, for a column: `45s`, `12m`, `3.5h`, `4d`."""
    if seconds < 0.5:
        return "0s"
    size, unit = _unit(max(1.0, seconds))
    return f"{_digits(seconds / size)}{unit.removesuffix('in')}"


def interval(low: float, high: float) -> str:
    """From one time to another: `4–12 min`; with two units where one would hide the lower end:
    `4 s to 2.2 h`."""
    size, unit = _unit(high)
    if _digits(low / size) == _digits(high / size):
        return duration(high)
    if low <= 0 or low / size >= 0.95 or unit in ("s", "ms"):
        return f"{_digits(max(0.0, low) / size)}–{_digits(high / size)} {unit}"
    return f"{duration(low)} to {duration(high)}"


def moment(at: float) -> str:
    """A point in time: `2023-11-14T22:13:20Z`; one that counts from 0 as a number, `3600`."""
    if at < _CALENDAR:
        return f"{at:.10g}"
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def memory(mib: float) -> str:
    """An amount of memory: `512 MiB`, `1.5 GiB`."""
    return f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def share(value: float) -> str:
    """A part of a whole: `40 %`, `0.4 %`."""
    return f"{100 * value:.0f} %" if value == 0 or value >= 0.0095 else f"{100 * value:.1g} %"


def sure(probability: float) -> str:
    """How sure something is: `96 %`; nothing is certain."""
    return "> 99 %" if probability > 0.994 else f"{100 * probability:.0f} %"


def amount(value: float) -> str:
    """A number as people write it: `12,345`, `0.25`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def size_text(size: float) -> str:
    """`812 B`, `1.4 MiB`, `23 GiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1000 and len(units) > 1:
        size /= 1024
        units.pop(0)
    unit = units[0]
    return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"


def count_text(count: int, one: str, many: str = "") -> str:
    """`1 file`, `1,200 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _unit(seconds: float) -> tuple[float, str]:
    for size, unit in _UNITS:
        if seconds >= 1.5 * size:
            return size, unit
    return (1.0, "s") if seconds >= 1 or seconds <= 0 else (0.001, "ms")


def _digits(value: float) -> str:
    """Two digits, or more where they are whole."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")
