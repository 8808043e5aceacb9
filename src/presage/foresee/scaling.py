"""How much faster a data-parallel training gets with more workers: a speed model by family.

    step = compute(local batch) + sync(replicas, nodes)

Compute is a constant and a part for each sample. Sync is nothing for one replica; else a constant
and a part for each replica beyond two, in one machine or across machines. None of the six
coefficients is negative. They are fitted to measured steps by relative error, and learn online
from own runs: what is kept of the past are sums (a Gram matrix by family), so an update costs
nothing and forgets exponentially. The global batch of a job stays the same whatever its workers.

`python -m presage.foresee.scaling STEPS DATE` fits a table of measured steps for one's own use.

`Speeds` is what a live cluster knows: the curve of the family that a job names, or one for any
job, bent to what runs of the same workload reported at the sizes they had. Those points are in the
journal; here they are only read. Where nobody measured a family, `foreseen_steps` has its curve
from bytes and links (`communication`), if the model's parameters and the seconds of its step are
known.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.foresee.communication import Exposure, RankLoad, communication, fabric
from presage.foresee.gpus import Gpu
from presage.learn.bundle import load_bundle, save_bundle
from presage.model.errors import BundleError, PresageError, UserError
from presage.model.setup import Parallelism, Setup
from presage.model.speed import SpeedBook, SpeedPoint

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "ANY_JOB",
    "COLUMNS",
    "Bend",
    "Foreseen",
    "ScalingModel",
    "Speeds",
    "StepModel",
    "Stretches",
    "family_of",
    "fit_steps",
    "foreseen_on",
    "foreseen_steps",
    "own_scaling",
    "parameters_of",
]

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
        weights = _not_negative(self._sums[family])
        self._models[family] = StepModel(tuple(map(float, weights)), float(np.exp(total / seen)))
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


def fit_steps(table: pl.DataFrame, name: str = "scaling") -> ScalingModel:
    """A model of measured steps: a family in each `model`, `step_time` in seconds by `local_bsz`,
    `num_replicas` and `num_nodes`."""
    wanted = ("model", "step_time", "local_bsz", "num_replicas", "num_nodes")
    if lacking := [column for column in wanted if column not in table.columns]:
        raise UserError(f"the measured steps lack the column {', '.join(lacking)}")
    model = ScalingModel(name)
    for (family,), group in table.group_by("model", maintain_order=True):
        columns = (group[column] for column in wanted[1:])
        model.update(str(family), *columns)
    return model


def own_scaling() -> ScalingModel | None:
    """The model in `scaling.npz` where a user's own bundles are; None when there is none."""
    from presage.foresee.estimators import own_models

    path = own_models() / "scaling.npz"
    return ScalingModel.load(path) if path.is_file() else None


# -- without measurements -----------------------------------------------------------------------

Foreseen = Callable[[str, float], StepModel | None]
"""The name of a model and the seconds of its step on one worker -> how it scales, if that can be
foreseen."""
_MOST_ANSWERS = 4096


def foreseen_steps(
    parameters: float,
    step_s: float,
    gpu: Gpu,
    setup: Setup | None = None,
    how: Exposure | None = None,
) -> StepModel:
    """The step of a model of so many parameters that takes so long on one GPU; one local batch is
    what it takes then. Sharding and links are those of the set-up, else plain data parallelism."""
    setup = setup or Setup(precision="amp")
    sharding = setup.parallel.sharding
    kind = Parallelism("ddp" if sharding == "none" else sharding)
    load = RankLoad(parameters, parameters, gradient_bytes=2 if setup.half else 4)

    def lost(replicas: int, machine: int) -> float:
        asked = replace(setup, gpus=replicas, parallel=kind)
        over = fabric(gpu, setup.interconnect, machine)
        third = 1e3 * step_s / setup.accumulate / 3
        return communication(load, asked, over, third, 2 * third, how).exposed_ms / 1e3

    near, far = lost(2, 8), lost(2, 1)
    near_each, far_each = (lost(8, 8) - near) / 6, (lost(16, 8) - far) / 14
    fixed, per_sample = (share * step_s for share in ANY_JOB.coefficients[:2])
    return StepModel((fixed, per_sample, near, max(0.0, near_each), far, max(0.0, far_each)), 1.0)


def foreseen_on(gpu: Gpu, parameters: Callable[[str], float | None] | None = None) -> Foreseen:
    """How models scale on this GPU, by their parameters; None for one that nobody knows."""
    count = parameters or parameters_of

    @lru_cache(_MOST_ANSWERS)
    def answer(model: str, step_s: float) -> StepModel | None:
        size = count(model)
        return None if size is None else foreseen_steps(size, step_s, gpu)

    return answer


@cache
def _foreseen_by() -> str:
    """What was learned about links and GPUs, with its version."""
    from presage.foresee.estimators import version

    return version("throughput")


@cache
def parameters_of(model: str) -> float | None:
    """Parameters of a model of the zoo or of the bundled table of architectures; needs no
    PyTorch."""
    kind, _, name = model.rpartition(":")
    try:
        if kind == "zoo":
            from presage.foresee.graph import precomputed, zoo

            graph = precomputed.read(zoo.find(name))
            return float(graph.params) if graph is not None else None
        if kind == "hf":
            from presage.foresee.graph.architectures import find_architecture

            return find_architecture(name).published_params
    except PresageError:
        return None
    return None


# -- own runs -----------------------------------------------------------------------------------

ANY_JOB = StepModel((0.05, 0.95, 0.0, 0.0, 0.0, 0.0), 1.0)
"""A job of which nothing is known: each further worker costs a twentieth of a step."""

RIDGE = 0.02
"""What keeps a slope near that foreseen; sizes of 1 and 3 that were measured well weigh 0.6."""
BELIEVED_S = 5.0
"""Seconds at a size after which own runs are believed half."""
FIRST_S, LONGEST_S = 5.0, 3600.0
"""A stretch of a run at one size becomes a point after so long; the next takes twice as long."""
_LEAST_GAIN = 1e-9
"""The share of its work that a run must have done in a stretch."""
_TRAINS = {"resnet18": "cifar10", "resnet50": "imagenet"}
"""Model -> the family of the public measurements, which are named after the data sets."""


def family_of(model: str | None) -> str:
    """The family under which a model's steps were measured: `zoo:resnet50` is `imagenet`."""
    name = (model or "").rpartition(":")[2].rpartition("/")[2].partition(".")[0].lower()
    return _TRAINS.get(name, name)


Shape = tuple[int, int]
"""Workers, and the nodes they are on."""


@dataclass(slots=True)
class _Stretch:
    mark: tuple[int, float, int, int]
    """The attempt, when it got its size, and the size."""
    done: float
    ran_s: float
    wanted_s: float = FIRST_S


class Stretches:
    """Turns reports of progress into points: how much of its work a run did while it kept its
    size. The first report at a size only begins a stretch, so that what a resize costs is not
    counted."""

    def __init__(self) -> None:
        self._of: dict[str, _Stretch] = {}

    def see(
        self, job: str, mark: tuple[int, float, int, int], done: float, ran_s: float
    ) -> SpeedPoint | None:
        """A run reported so much of its work after so many seconds of running.

        `mark` is the attempt, the time it got its size, and its workers and nodes.
        """
        open_one = self._of.get(job)
        if open_one is None or open_one.mark != mark or done < open_one.done:
            self._of[job] = _Stretch(mark, done, ran_s)
            return None
        passed, gained = ran_s - open_one.ran_s, done - open_one.done
        if passed < open_one.wanted_s or gained < _LEAST_GAIN or done >= 1:
            return None
        longer = min(2 * open_one.wanted_s, LONGEST_S)
        self._of[job] = _Stretch(mark, done, ran_s, longer)
        return SpeedPoint(mark[2], mark[3], passed / gained, passed)

    def keep(self, jobs: set[str]) -> None:
        """Forget all other jobs."""
        self._of = {job: one for job, one in self._of.items() if job in jobs}


class Speeds:
    """How the jobs of a cluster scale, by a fitted model, by what is foreseen where it knows
    nothing, and by the points of a book."""

    def __init__(
        self,
        fitted: ScalingModel | None = None,
        book: SpeedBook | None = None,
        foreseen: Foreseen | None = None,
    ) -> None:
        self.fitted, self.foreseen = fitted, foreseen
        self._book = book if book is not None else SpeedBook()
        self._name = fitted.version if fitted is not None else "scaling of any job"
        if foreseen is not None:
            self._name += f", else foreseen by {_foreseen_by()}"
        self._known: dict[tuple[str, StepModel, int], tuple[tuple[SpeedPoint, ...], Bend]] = {}

    def reading(self, book: SpeedBook) -> Speeds:
        """The same with the points of another book."""
        return Speeds(self.fitted, book, self.foreseen)

    @property
    def version(self) -> str:
        """Changes whenever the book does."""
        return f"{self._name}, {self._book.count} own points" if self._book.count else self._name

    @property
    def tells(self) -> bool:
        """Whether anything is known of any job."""
        return self.fitted is not None or self.foreseen is not None or self._book.count > 0

    def ratio(
        self,
        work: str,
        model: str | None,
        least: int,
        new: Shape,
        old: Shape,
        step_s: float | None = None,
    ) -> float:
        """Time on the new workers over that on the old, of a job whose fewest workers are `least`
        and whose step takes so long on them, if that is known; always 1 as long as nothing is
        known of how it scales."""
        prior = self._prior(model, step_s)
        if prior is None:
            if len({p.workers for p in self._book.of(work)}) < 2:
                return 1.0
            prior = ANY_JOB
        foreseen = prior.time(*new, least) / prior.time(*old, least)
        return foreseen * self._bend(prior, work, least).times(new[0], old[0])

    def _prior(self, model: str | None, step_s: float | None) -> StepModel | None:
        """What was measured of its family; else what is foreseen of it; else of any family."""
        family = family_of(model)
        if self.fitted is not None and family in self.fitted.families:
            return self.fitted.step_model(family)
        if self.foreseen is not None and model and step_s:
            told = self.foreseen(model, step_s)
            if told is not None:
                return told
        return self.fitted.step_model(family) if self.fitted is not None else None

    def _bend(self, prior: StepModel, work: str, least: int) -> Bend:
        key, points = (work, prior, least), self._book.of(work)
        fitted = self._known.get(key)
        if fitted is None or fitted[0] is not points:
            fitted = self._known[key] = points, Bend.fit(prior, least, points)
        return fitted[1]


@dataclass(frozen=True, slots=True)
class Bend:
    """How a workload scales beside what was foreseen, in logarithms of time: a slope over the
    logarithm of its workers, and what is left of it at the sizes that were measured. Each is
    believed the more, the longer that was."""

    slope: float = 0.0
    sizes: tuple[float, ...] = (0.0,)
    """Logarithms of the workers, rising."""
    rest: tuple[float, ...] = (0.0,)

    @classmethod
    def fit(cls, prior: StepModel, asked: int, points: Sequence[SpeedPoint]) -> Bend:
        """From what runs reported, of a job that asks for so many workers; a point a size."""
        if not points:
            return cls()
        seconds = np.array([point.measured_s for point in points])
        trust = seconds / (seconds + BELIEVED_S)
        x = np.log([point.workers for point in points])
        y = np.array([log(p.whole_s / prior.time(p.workers, p.nodes, asked)) for p in points])
        x_middle, y_middle = np.average(x, weights=trust), np.average(y, weights=trust)
        spread = float(trust @ (x - x_middle) ** 2)
        slope = float(trust @ ((x - x_middle) * (y - y_middle))) / (spread + RIDGE)
        left = trust * (y - y_middle - slope * (x - x_middle))
        sizes, place = np.unique(x, return_inverse=True)
        rest = np.bincount(place, left) / np.bincount(place)
        return cls(slope, tuple(sizes.tolist()), tuple(rest.tolist()))

    def times(self, new: int, old: int) -> float:
        """How many times longer it takes on new workers than on old ones, over what was
        foreseen."""
        x = np.log([new, old])
        here, before = self.slope * x + np.interp(x, self.sizes, self.rest)
        return exp(here - before)


def _design(batch: Floats, replicas: Floats, nodes: Floats) -> Floats:
    near = (replicas > 1) & (nodes < 2)
    far = (replicas > 1) & (nodes >= 2)
    more = np.maximum(replicas - 2, 0.0)
    return np.column_stack((np.ones(batch.size), batch, near, near * more, far, far * more))


def _not_negative(sums: Floats) -> Floats:
    """Non-negative least squares (NNLS) from the Gram matrix: the best of all subsets, as there
    are only 64."""
    gram, target = sums[:-1, :-1], sums[:-1, -1]
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1.0
    gram, target = gram / np.outer(scale, scale), target / scale
    best, least = np.zeros(len(target)), 0.0
    for subset in _subsets(len(target)):
        part = np.ix_(subset, subset)
        solution = np.linalg.lstsq(gram[part], target[list(subset)], rcond=1e-10)[0]
        loss = float(solution @ gram[part] @ solution - 2 * solution @ target[list(subset)])
        if solution.min() >= 0 and loss < least - 1e-12:
            best = np.zeros(len(target))
            best[list(subset)] = solution
            least = loss
    result: Floats = best / scale
    return result


@cache
def _subsets(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        chosen for size in range(1, count + 1) for chosen in combinations(range(count), size)
    )


def _main(steps: str, date: str) -> None:
    """Fit measured steps, and put the model where a user's own are."""
    import polars as pl

    from presage.foresee.estimators import own_models

    try:
        table = pl.read_csv(steps) if steps.endswith(".csv") else pl.read_parquet(steps)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{steps} cannot be read: {error}") from None
    model, path = fit_steps(table), own_models() / "scaling.npz"
    card = {
        "name": model.name,
        "date": date,
        "data": f"{Path(steps).name}, {table.height} rows",
        "licence": "the user's",
        "features": list(COLUMNS),
        "splits": "none",
        "errors": {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path, card)
    print(f"scaling.npz knows {', '.join(model.families)}")


if __name__ == "__main__":
    try:
        _main(*sys.argv[1:])
    except UserError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(wrong.exit_code)
