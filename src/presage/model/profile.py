"""What a run used: the profile of one execution of a workload, and its JSON.

A signature says which workload it was: runs with equal signatures did the same work. Frozen values
only; who measured them, and where they are kept, is not known here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from presage.model.codec import decode, encode
from presage.model.errors import UserError

__all__ = ["Distribution", "Profile", "profile_from_json", "profile_to_json"]

_FORMAT = 1
_SIGNATURE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a quantity was distributed over a run."""

    mean: float
    p50: float
    p95: float
    max: float

    def __post_init__(self) -> None:
        values = (self.mean, self.p50, self.p95, self.max)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"a spread needs finite numbers from 0 on, not {values}")
        if not self.p50 <= self.p95 <= self.max:
            raise ValueError(f"a spread needs p50 ≤ p95 ≤ max, not {values}")

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        """The spread of one or more samples."""
        ordered = sorted(values)
        mean = math.fsum(ordered) / len(ordered)
        return cls(mean, _quantile(ordered, 0.5), _quantile(ordered, 0.95), ordered[-1])


@dataclass(frozen=True, slots=True)
class Profile:
    """One run. CPU, memory, disk and GPU are those of the command and all its descendants; the
    network is that of the machine."""

    signature: str
    command: tuple[str, ...]
    started_s: float
    """Seconds since 1970, UTC."""
    duration_s: float
    exit_code: int
    """128 + n for a run that signal n ended."""
    samples: int
    hz: float
    """Samples a second, as achieved."""
    cpu_cores: Distribution
    rss_mib: Distribution
    """Summed over the processes; a page that several of them share counts for each."""
    read_bytes_s: Distribution
    write_bytes_s: Distribution
    net_sent_bytes_s: Distribution
    net_received_bytes_s: Distribution
    device: str = "cpu"
    """The GPU as its driver names it, or `cpu`."""
    gpus: int = 0
    gpu_util_pct: Distribution | None = None
    """Of the devices that the run used, on average over them."""
    gpu_memory_mib: Distribution | None = None
    """Summed over the devices."""
    step_ms: Distribution | None = None
    """As the job reported it."""
    batch: int | None = None
    graph_signature: str | None = None
    other_cores: float = 0.0
    """Cores that the rest of the machine kept busy, on average."""
    alone: bool = True
    """Whether nothing else of weight ran on the machine, nor on the GPUs of this run."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _SIGNATURE.fullmatch(self.signature):
            raise ValueError(
                f"signature {self.signature!r} is none: 1 to 128 letters, digits, '.', '_', '-'"
            )
        if not self.command:
            raise ValueError("a profile needs the command that was run")
        for name in ("started_s", "duration_s", "hz", "other_cores"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number from 0 on, not {value}")
        if self.samples < 0 or self.gpus < 0 or (self.batch is not None and self.batch < 1):
            raise ValueError("samples, gpus and batch cannot be negative, nor batch 0")


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """A profile as JSON types; what holds its default is left out."""
    return {"format": _FORMAT, **encode(profile)}


def profile_from_json(data: object) -> Profile:
    """The profile that `profile_to_json` wrote; `UserError`, one line, for anything else."""
    if not isinstance(data, Mapping):
        raise UserError(f"a profile is a JSON object, not {type(data).__name__}")
    if data.get("format") != _FORMAT:
        raise UserError(
            f"the profile has format {data.get('format')!r}, and this Presage reads format"
            f" {_FORMAT}: use the version that wrote it, or a newer one"
        )
    content = {key: value for key, value in data.items() if key != "format"}
    try:
        profile: Profile = decode(Profile, content)
    except (ValueError, TypeError) as error:
        raise UserError(f"the profile makes no sense: {error}") from None
    return profile


def _quantile(ordered: list[float], share: float) -> float:
    """Linear between the two neighbours."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    between = ordered[low] + (ordered[high] - ordered[low]) * (at - low)
    return min(between, ordered[high])  # rounding may not lift it over its neighbour
