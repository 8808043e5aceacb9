"""What to give each pod next, as a patch for Kubernetes or for a Presage manifest, with the reason
for every number.

The window after the last sample is sized as the replay sizes any other. Only amounts can be asked
for: CPU in cores, memory in bytes. Telemetry in percent or shares says nothing about those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from presage.model.errors import ProvisionError
from presage.provision.policies import PhaseSource
from presage.provision.rightsize import RightsizeResult, SizedResource, rightsize
from presage.provision.usage import MEMORY
from presage.telemetry.series import Series

__all__ = ["Recommendation", "kubernetes_patch", "recommend"]

_BYTES = {"bytes": 1.0, "kB": 1024.0, "MiB": float(1 << 20)}
_WHAT = {
    "adaptive": "the {value} of the last window",
    "phase": "the {value} that its phase was measured to use",
    "forecast": "what the next window is expected to need",
    "vpa": "p90 + 15 % of its use so far (VPA)",
    "krr": "p95 of its use so far (KRR)",
    "static": "the largest use that is known",
}
_WHAT_MEMORY = {
    "vpa": "the peak of each day + 15 % (VPA)",
    "krr": "the largest use so far + 15 % (KRR)",
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """How much of one resource a pod should have next, and why."""

    pod: str
    resource: str
    amount: float
    unit: str
    reason: str


def recommend(
    series: Sequence[Series],
    policy: str,
    window_s: float,
    *,
    model: PhaseSource | None = None,
    **settings: Any,
) -> list[Recommendation]:
    """Size the window after each pod's last sample; `settings` are those of `rightsize`."""
    if policy == "dynamic":
        raise ProvisionError("the policy 'dynamic' knows the future and cannot recommend anything")
    longer = [_with_next_window(one, window_s) for one in series if len(one)]
    outcome = rightsize(longer, [policy], window_s, model=model, **settings)
    return [
        one
        for sized in outcome.sized[policy].values()
        for one in _of_resource(policy, outcome, sized)
    ]


def kubernetes_patch(
    recommended: Sequence[Recommendation], pod: str, container: str
) -> dict[str, Any]:
    """A strategic merge patch that resizes a container of a pod in place:
    `kubectl patch pod POD --subresource resize --patch ...`."""
    sizes = {}
    for one in _of_pod(recommended, pod):
        if one.resource == "cpu" and one.unit == "cores":
            sizes["cpu"] = f"{max(1, ceil(1000 * one.amount - 1e-6))}m"
        elif one.resource == "memory" and one.unit in _BYTES:
            sizes["memory"] = f"{_mib(one)}Mi"
    _refuse_nothing(sizes, recommended, pod)
    resources = {"requests": sizes, "limits": dict(sizes)}
    return {"spec": {"containers": [{"name": container, "resources": resources}]}}


def _with_next_window(series: Series, window_s: float) -> Series:
    """The series with one more sample, which begins the next window. What it holds is not looked
    at: a window is sized by the samples before it."""
    since = series.times[-1] - series.times[0]
    begins = series.times[0] + window_s * (np.floor(since / window_s + 1e-9) + 1)
    known = np.nan_to_num(series.values[-1:])
    return replace(
        series,
        times=np.append(series.times, begins),
        values=np.concatenate([series.values, known]),
        rows=None,
    )


def _of_resource(
    policy: str, outcome: RightsizeResult, sized: SizedResource
) -> list[Recommendation]:
    usage = sized.usage
    last = np.flatnonzero(np.append(usage.first[1:], True))
    short = usage.maximum > sized.allocation * (1 + 1e-9)
    short[last] = False  # that sample was made up
    lost = np.bincount(usage.pod, short, len(usage.pods)).astype(np.int64)
    seen = outcome.outlooks.get(usage.resource)
    recommended = []
    for row in last:
        pod, amount = usage.pod[row], float(sized.allocation[row])
        if np.isnan(amount):
            continue
        what = _WHAT_MEMORY.get(policy) if usage.resource in MEMORY else None
        parts = [(what or _WHAT[policy]).format(value=outcome.value)]
        if seen is not None and seen.phase[row] >= 0:
            parts.append(f"it is in phase {seen.phase[row]}")
            if policy == "forecast":
                parts[-1] += f", which ends within the window with {seen.change[row]:.0%}"
        parts.append(f"windows of {usage.window_s:g} s, margin {sized.score.margin:+.1%}")
        if outcome.target_pct is not None:
            parts[-1] += f" (for {outcome.target_pct:g} % of samples)"
        parts.append(_history(int(lost[pod]), int(usage.order[row]) - 1, usage.resource))
        recommended.append(
            Recommendation(usage.pods[pod], usage.resource, amount, usage.unit, "; ".join(parts))
        )
    return recommended


def _history(lost: int, windows: int, resource: str) -> str:
    if windows < 1:
        return "nothing is known of how it went before"
    what = "ran out of memory" if resource in MEMORY else "fell short"
    return f"so sized, it {what} in {lost} of {windows} windows before"


def _of_pod(recommended: Sequence[Recommendation], pod: str) -> list[Recommendation]:
    mine = [one for one in recommended if one.pod == pod]
    if not mine:
        raise ProvisionError(f"there is nothing to recommend for pod {pod}")
    return mine


def _refuse_nothing(
    sizes: Mapping[str, Any], recommended: Sequence[Recommendation], pod: str
) -> None:
    if not sizes:
        units = ", ".join(
            f"{one.resource} in {one.unit or '?'}" for one in _of_pod(recommended, pod)
        )
        raise ProvisionError(
            f"pod {pod} was measured as {units}, which no request can be made of; "
            "a patch needs cpu in cores or memory in bytes"
        )


def _mib(one: Recommendation) -> int:
    return max(1, ceil(one.amount * _BYTES[one.unit] / (1 << 20) - 1e-6))
