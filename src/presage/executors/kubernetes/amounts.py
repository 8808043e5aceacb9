"""Quantities as Kubernetes writes them (`100m`, `1.5Gi`, `2e3`), as exact numbers. No I/O."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

__all__ = ["amount", "cpu_milli", "mib"]

_FORM = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:[eE]([+-]?\d{1,2})|([A-Za-z]{0,2}))"
)
_SUFFIX = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
}
_SUFFIX |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)}
_SUFFIX |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)}


def amount(text: object) -> Fraction:
    """A quantity; raises ValueError for what is none."""
    return _read(str(text))


@lru_cache(maxsize=4096)  # thousands of pods ask for the same few
def _read(text: str) -> Fraction:
    match = _FORM.fullmatch(text.strip())
    unit = _SUFFIX.get(match[3] or "") if match else None
    if match is None or unit is None:
        raise ValueError(f"{text[:60]!r} is not a quantity of Kubernetes, such as 500m or 2Gi")
    return Fraction(match[1]) * unit * Fraction(10) ** int(match[2] or 0)


def cpu_milli(quantity: Fraction) -> int:
    """Milli-CPUs, rounded up."""
    return math.ceil(quantity * 1000)


def mib(quantity: Fraction) -> int:
    """MiB, rounded up."""
    return math.ceil(quantity / (1 << 20))
