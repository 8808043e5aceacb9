"""A phase model as one bundle: arrays and a card. What is read is checked, not trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.model.errors import BundleError, UserError
from presage.observe.phases.crbm import CRBM
from presage.observe.phases.forecast import PhaseForecaster
from presage.observe.phases.peers import ChangePointEncoder, HmmEncoder, WindowEncoder
from presage.observe.phases.statistics import PhaseStatistics
from presage.observe.phases.windows import Encoder, Scaler
from presage.telemetry.series import Series

if TYPE_CHECKING:
    from presage.observe.phases.model import PhaseModel

__all__ = ["NAME", "VERSION", "load", "save"]

NAME = "phases"
VERSION = 1

Arrays = Mapping[str, npt.NDArray[Any]]

_ENCODERS: dict[str, type[CRBM | HmmEncoder | ChangePointEncoder | WindowEncoder]] = {
    "crbm": CRBM,
    "hmm": HmmEncoder,
    "changepoints": ChangePointEncoder,
    "windows": WindowEncoder,
}


def save(model: PhaseModel, path: Path, *, date: str, data: str, licence: str) -> None:
    """Write the model; see `PhaseModel.save`."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "mean": model.scaler.mean,
        "scale": model.scaler.scale,
        "centres": model.centres,
        "parents": model.parents,
        "limits": model.limits,
        "curve_k": np.array(list(model.curve), dtype=np.int64),
        "curve": np.array(list(model.curve.values()), dtype=np.float64),
        **prefixed("encoder", model.encoder.to_arrays()),
        **prefixed("statistics", model.statistics.to_arrays()),
        **prefixed("training", _packed(model.training)),
    }
    errors: dict[str, float] = {}
    if model.forecaster is not None:
        arrays |= prefixed("forecast", model.forecaster.to_arrays())
        errors = {f"log loss, {kind}": loss for kind, loss in model.forecaster.losses.items()}
    pods = model.training
    card = {
        "name": NAME,
        "version": VERSION,
        "date": date,
        "data": data,
        "licence": licence,
        "features": list(model.features),
        "splits": "a fifth of the pods kept aside to choose and calibrate the forecast",
        "errors": {key: loss for key, loss in errors.items() if np.isfinite(loss)},
        "method": model.method,
        "every": model.every,
        "max_gap": model.max_gap,
        "history": model.history,
        "forecast": model.forecaster is not None,
        "units": list(pods[0].units) if pods else [],
        "resources": {name: list(parts) for name, parts in pods[0].resources.items()}
        if pods
        else {},
    }
    save_bundle(path, arrays, card)


def load(kind: type[PhaseModel], path: Path) -> PhaseModel:
    """Read a model; see `PhaseModel.load`."""
    arrays, card = load_bundle(path)
    if card.get("name") != NAME:
        raise BundleError(f"{path} holds no phases but {card.get('name')!r}; name another bundle")
    if card.get("version") != VERSION:
        raise BundleError(
            f"{path} has phases of version {card.get('version')}; this program reads version "
            f"{VERSION}: fit them again"
        )
    try:
        return _model(kind, arrays, card)
    except UserError as wrong:
        raise BundleError(f"{path} is damaged; fit it again ({wrong})") from None
    except (KeyError, TypeError, ValueError, IndexError) as wrong:
        raise BundleError(f"{path} is damaged; fit it again ({wrong!r})") from None


def _model(kind: type[PhaseModel], arrays: Arrays, card: dict[str, Any]) -> PhaseModel:
    features = tuple(str(name) for name in card["features"])
    mean, scale, limits = _floats(arrays, "mean"), _floats(arrays, "scale"), arrays["limits"]
    centres, parents = _floats(arrays, "centres"), arrays["parents"].astype(np.int64)
    history = int(card["history"])
    every = float(card["every"])
    max_gap = None if card["max_gap"] is None else float(card["max_gap"])
    encoder: Encoder = _ENCODERS[card["method"]].from_arrays(under("encoder", arrays))
    own = np.arange(len(parents))
    _check(mean.shape == scale.shape == (len(features),), "the scaler")
    _check(bool((scale > 0).all()), "the scaler")
    _check(history >= 1 and every > 0 and (max_gap is None or max_gap >= 0), "the grid")
    _check(centres.ndim == 2 and len(centres) == len(parents) > 0, "the centres")
    _check(bool(((parents >= -1) & (parents < own)).all()), "the tree of phases")
    _check(limits.shape == (4,) and bool(np.isfinite(limits).all()), "the limits of drift")
    code = encoder.encode(np.zeros((1, history + 1, len(features))))
    _check(code.shape == (1, centres.shape[1]), "the encoder")
    ks, cohesion = arrays["curve_k"], _floats(arrays, "curve")
    _check(ks.shape == cohesion.shape, "the curve")
    forecaster = None
    if card["forecast"]:
        width = (history + 1) * len(features)
        forecaster = PhaseForecaster.from_arrays(under("forecast", arrays), len(centres), width)
    return kind(
        features,
        every,
        max_gap,
        history,
        Scaler(mean, scale),
        encoder,
        centres,
        parents,
        dict(zip(ks.tolist(), cohesion.tolist(), strict=True)),
        PhaseStatistics.from_arrays(under("statistics", arrays), len(centres)),
        np.asarray(limits, dtype=np.float64),
        _unpacked(under("training", arrays), card),
        forecaster,
    )


def _packed(series: Sequence[Series]) -> dict[str, npt.NDArray[Any]]:
    return {
        "pods": np.array([pod.pod for pod in series], dtype=np.str_),
        "lengths": np.array([len(pod) for pod in series], dtype=np.int64),
        "times": np.concatenate([pod.times for pod in series] or [np.empty(0)]),
        "values": np.concatenate(
            [pod.values.astype(np.float32) for pod in series] or [np.empty((0, 0), np.float32)]
        ),
        "features": np.array(series[0].features if series else (), dtype=np.str_),
    }


def _unpacked(arrays: Arrays, card: dict[str, Any]) -> list[Series]:
    features = tuple(str(name) for name in arrays["features"])
    resources = {
        str(name): tuple(str(part) for part in parts) for name, parts in card["resources"].items()
    }
    _check(all(set(parts) <= set(features) for parts in resources.values()), "the resources")
    lengths, times = arrays["lengths"], _floats(arrays, "times")
    values = arrays["values"].astype(np.float64)
    _check(bool((lengths >= 0).all()) and int(lengths.sum()) == len(times), "the training data")
    _check(len(values) == len(times) and len(lengths) == len(arrays["pods"]), "the training data")
    ends = np.cumsum(lengths)[:-1]
    return [
        Series(str(pod), own_times, own_values, features, tuple(card["units"]), resources)
        for pod, own_times, own_values in zip(
            arrays["pods"], np.split(times, ends), np.split(values, ends), strict=True
        )
    ]


def _floats(arrays: Arrays, name: str) -> npt.NDArray[np.float64]:
    part = np.asarray(arrays[name], dtype=np.float64)
    _check(bool(np.isfinite(part).all()), name)
    return part


def _check(sound: bool, what: str) -> None:
    if not sound:
        raise BundleError(f"{what} cannot be right")
