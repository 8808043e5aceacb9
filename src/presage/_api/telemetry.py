"""`presage.rightsize` and `presage.phases`: what jobs did, by telemetry in any form that people
have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias, get_args

import polars as pl

from presage.manifest.quantities import duration_s
from presage.model.errors import UserError
from presage.observe.phases import PhaseModel
from presage.observe.phases.model import Method
from presage.observe.phases.phasing import Phasing
from presage.provision.rightsize import RightsizeResult
from presage.provision.rightsize import rightsize as replay
from presage.telemetry.readers import read_telemetry
from presage.telemetry.series import Series

__all__ = ["METHODS", "phases", "rightsize", "usual_policies"]

METHODS: tuple[str, ...] = get_args(Method)
"""How samples can be encoded."""

TelemetryLike: TypeAlias = str | PathLike[str] | pl.DataFrame | Series | Sequence[Series]
"""A file, directory, pattern or archive, a table with the same columns, or series."""


def rightsize(
    telemetry: TelemetryLike,
    policies: Sequence[str] | None = None,
    *,
    window: float | str = "10m",
    bundle: str | PathLike[str] | PhaseModel | None = None,
    margin: float = 0.0,
    target_fulfilment: float | None = None,
    value: str = "mean+2sd",
    slow_reduction: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RightsizeResult:
    """How much right-sizing policies would have given, and how well that would have served.

    `window` is how often a pod is resized; `bundle` has phases (of `presage.phases`, or a file),
    which the policies `phase` and `forecast` need; `target_fulfilment`, in per cent of samples,
    gives each policy the smallest margin that reaches it on the training of the bundle.

        presage.rightsize("telemetry.parquet", ["adaptive", "vpa"]).to_polars()
    """
    model = _model(bundle)
    return replay(
        _series(telemetry),
        usual_policies(bundle=model is not None) if policies is None else policies,
        _seconds(window, "window"),
        model=model,
        margin=margin,
        target_pct=target_fulfilment,
        value=value,
        slow_reduction=slow_reduction,
        report=progress,
    )


def usual_policies(*, bundle: bool) -> list[str]:
    """What is compared when no policies are named, with or without a bundle."""
    return [*(("forecast", "phase") if bundle else ()), "adaptive", "dynamic", "vpa", "krr"]


def phases(
    telemetry: TelemetryLike,
    *,
    model: str | PathLike[str] | PhaseModel | None = None,
    k: int | None = None,
    features: Sequence[str] | None = None,
    every: float | str | None = None,
    method: str = "changepoints",
    seed: int = 0,
) -> Phasing:
    """Find phases in telemetry, without labels; or, with a model (or its bundle), know them again.

    `k` is how many (chosen by cohesion unless given), `every` the time from row to row, `features`
    those to look at, `method` one of changepoints, crbm, hmm and windows.

        found = presage.phases("telemetry.csv"); found.plot()
        presage.phases("tomorrow.csv", model=found.model).to_polars()
    """
    known = _model(model)
    if method not in METHODS:
        raise UserError(f"there is no method '{method}'; there are {', '.join(METHODS)}")
    series = _series(telemetry)
    if known is None:
        row_s = None if every is None else _seconds(every, "every")
        known = PhaseModel.fit(
            series,
            features=features,
            every=row_s,
            k=k,
            method=method,  # type: ignore[arg-type]  # checked above
            seed=seed,
        )
    return Phasing(known, series)


def _series(telemetry: TelemetryLike) -> list[Series]:
    if isinstance(telemetry, Series):
        return [telemetry]
    if isinstance(telemetry, str | PathLike | pl.DataFrame):
        return read_telemetry(telemetry)
    given: list[object] = list(telemetry) if isinstance(telemetry, Iterable) else [telemetry]
    series = [pod for pod in given if isinstance(pod, Series)]
    if len(series) < len(given):
        raise UserError("telemetry is a file, a Polars DataFrame, or a list of Series")
    return series


def _model(bundle: str | PathLike[str] | PhaseModel | None) -> PhaseModel | None:
    return PhaseModel.load(Path(bundle)) if isinstance(bundle, str | PathLike) else bundle


def _seconds(given: float | str, name: str) -> float:
    try:
        return duration_s(given)
    except ValueError as wrong:
        raise UserError(f"{name}: {wrong}") from None
