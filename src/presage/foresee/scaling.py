"""How much faster a data-parallel training gets with more workers: a speed model by family.

    step = compute(local batch) + sync(replicas, nodes)

Compute is a constant and a part for each sample. Sync is nothing for one replica; else a constant
and a part for each replica beyond two, in one machine or across machines. None of the six
coefficients is negative. They are fitted to measured steps by relative error, and go on learning
from own runs: what is kept of the past are sums (a Gram matrix by family), so an update costs
nothing and forgets at a set rate. The global batch of a job stays the same whatever its workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn.bundle import BundleError, load_bundle, save_bundle
from presage.model.errors import UserError

__all__ = ["COLUMNS", "ScalingModel", "StepModel"]

Floats = npt.NDArray[np.float64]

COLUMNS = ("fixed", "per_sample", "near", "near_each", "far", "far_each")
"""The coefficients of a family, in seconds."""

LEAST_STEPS = len(COLUMNS)
"""A family with fewer measured steps is foreseen as an unknown one."""

PAST_STEPS = 50.0
"""Measured steps that the past weighs at most as much as when new ones come in."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """The step of one family."""

    coefficients: tuple[float, ...]
    """As in `COLUMNS`."""
    local_batch: float
    """Samples a replica takes when a job does not say: the middle of those measured."""

    def step_s(self, replicas: int, nodes: int = 1, local_batch: float | None = None) -> float:
        """Seconds of one step, each replica with so many samples."""
        batch = self.local_batch if local_batch is None else local_batch
        fixed, per_sample, near, near_each, far, far_each = self.coefficients
        compute = fixed + per_sample * batch
        if replicas < 2:
            return compute
        base, each = (near, near_each) if nodes < 2 else (far, far_each)
        return compute + base + each * (replicas - 2)

    def time(
        self, workers: int, nodes: int, asked: int, local_batch: float | None = None
    ) -> float:
        """Seconds of one step when the global batch is that of `asked` workers with this local
        batch each."""
        batch = self.local_batch if local_batch is None else local_batch
        return self.step_s(workers, nodes, batch * asked / workers)


class ScalingModel:
    """Step models by family, and a default for families that were never seen."""

    def __init__(self, name: str = "scaling") -> None:
        self.name = name
        self._sums: dict[str, Floats] = {}
        """By family: the Gram matrix of (columns, 1) over relative steps, one row larger than
        there are columns."""
        self._log_batch: dict[str, tuple[float, float]] = {}
        """By family: sum of the logarithms of local batches, and how many."""
        self._models: dict[str, StepModel] = {}
        self._default: StepModel | None = None

    @property
    def version(self) -> str:
        """Changes whenever it learns something."""
        digest = hashlib.sha256()
        for family in sorted(self._sums):
            digest.update(family.encode())
            digest.update(self._sums[family].tobytes())
        return f"{self.name}-{digest.hexdigest()[:8]}"

    @property
    def families(self) -> list[str]:
        """Those it has measured steps of."""
        return sorted(self._models)

    def update(
        self,
        family: str,
        step_s: npt.ArrayLike,
        local_batch: npt.ArrayLike,
        replicas: npt.ArrayLike,
        nodes: npt.ArrayLike,
    ) -> ScalingModel:
        """Learn from measured steps of one family; the past fades as new ones come in."""
        steps, batch = np.asarray(step_s, dtype=float), np.asarray(local_batch, dtype=float)
        count, places = np.asarray(replicas, dtype=float), np.asarray(nodes, dtype=float)
        if not steps.size or min(steps.min(), batch.min(), count.min(), places.min()) <= 0:
            raise UserError(f"measured steps of {family!r} must be positive numbers, one or more")
        rows = _design(batch, count, places) / steps[:, None]
        rows = np.column_stack((rows, np.ones(steps.size)))
        old = self._sums.get(family, np.zeros((rows.shape[1],) * 2))
        fade = min(1.0, PAST_STEPS / old[-1, -1]) if old[-1, -1] else 0.0
        self._sums[family] = fade * old + rows.T @ rows
        total, seen = self._log_batch.get(family, (0.0, 0.0))
        self._log_batch[family] = (
            fade * total + float(np.log(batch).sum()),
            fade * seen + steps.size,
        )
        self._solve(family)
        return self

    def step_model(self, family: str | None) -> StepModel:
        """The step of a family; the typical one where it was never measured."""
        known = self._models.get(family or "")
        if known is not None:
            return known
        if self._default is None:
            self._default = self._typical()
        return self._default

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        """Write a bundle; the card says what it was fitted on."""
        families = sorted(self._sums)
        arrays = {
            "sums": np.array([self._sums[family] for family in families]).reshape(
                len(families), len(COLUMNS) + 1, len(COLUMNS) + 1
            ),
            "log_batch": np.array([self._log_batch[f] for f in families]).reshape(-1, 2),
        }
        save_bundle(path, arrays, {**card, "families": families, "version": self.version})

    @classmethod
    def load(cls, path: Path) -> ScalingModel:
        """Read a bundle that `save` wrote."""
        arrays, card = load_bundle(path)
        families, size = card.get("families"), len(COLUMNS) + 1
        sums, log_batch = arrays.get("sums"), arrays.get("log_batch")
        if not isinstance(families, list) or sums is None or log_batch is None:
            raise BundleError(f"{path} holds no scaling model")
        if sums.shape != (len(families), size, size) or log_batch.shape != (len(families), 2):
            raise BundleError(f"{path} is damaged: its arrays do not fit its families")
        model = cls(str(card["name"]))
        for family, one, (total, seen) in zip(families, sums, log_batch, strict=True):
            model._sums[family] = np.asarray(one, dtype=float)
            model._log_batch[family] = (float(total), float(seen))
            model._solve(family)
        return model

    def _solve(self, family: str) -> None:
        total, seen = self._log_batch[family]
        if seen < LEAST_STEPS:
            return
        found = _not_negative(self._sums[family])
        self._models[family] = StepModel(tuple(map(float, found)), float(np.exp(total / seen)))
        self._default = None

    def _typical(self) -> StepModel:
        """The median family, each in units of its own compute step."""
        if not self._models:
            return StepModel((0.0, 1.0, 0.05, 0.05, 0.05, 0.05), 1.0)
        rows = []
        for model in self._models.values():
            unit = model.step_s(1)
            parts = np.array(model.coefficients)
            parts[1] *= model.local_batch  # the typical local batch is one unit
            rows.append(parts / unit)
        return StepModel(tuple(map(float, np.median(rows, axis=0))), 1.0)


def _design(batch: Floats, replicas: Floats, nodes: Floats) -> Floats:
    near = (replicas > 1) & (nodes < 2)
    far = (replicas > 1) & (nodes >= 2)
    more = np.maximum(replicas - 2, 0.0)
    return np.column_stack((np.ones(batch.size), batch, near, near * more, far, far * more))


def _not_negative(sums: Floats) -> Floats:
    """Least squares from its Gram matrix with no coefficient below zero: the best of all subsets,
    as there are only 64."""
    gram, target = sums[:-1, :-1], sums[:-1, -1]
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1.0
    gram, target = gram / np.outer(scale, scale), target / scale
    best, least = np.zeros(len(target)), 0.0
    for subset in _subsets(len(target)):
        part = np.ix_(subset, subset)
        found = np.linalg.lstsq(gram[part], target[list(subset)], rcond=1e-10)[0]
        loss = float(found @ gram[part] @ found - 2 * found @ target[list(subset)])
        if found.min() >= 0 and loss < least - 1e-12:
            best = np.zeros(len(target))
            best[list(subset)] = found
            least = loss
    result: Floats = best / scale
    return result


@cache
def _subsets(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        chosen for size in range(1, count + 1) for chosen in combinations(range(count), size)
    )
