"""Right-sizing in one call: telemetry in, and for each policy and resource how much it would have
given, how well that served, and the allocations themselves.

Margins can be given, or set so that every policy fulfils a target on the telemetry that a phase
model keeps of its training. There a policy that learns is judged on pods that it has not learned
from. Resources that the training does not have are left out as soon as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from presage.model.errors import ProvisionError
from presage.page import html_table
from presage.provision import policies as known
from presage.provision.allocate import (
    AllocationRules,
    AllocationScore,
    Wish,
    allocate,
    margin_for,
    score,
)
from presage.provision.forecast import UsageForecaster
from presage.provision.kin import alike
from presage.provision.policies import ExpectedPhases, PhaseSource, PhaseTable
from presage.provision.usage import Floats, Ints, Usage, Value, resources_in
from presage.telemetry.series import Series

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

__all__ = ["POLICIES", "PodSeries", "RightsizeResult", "SizedResource", "rightsize"]

POLICIES = ("dynamic", "adaptive", "phase", "forecast", "vpa", "krr", "static")
_NEED_BUNDLE = ("phase", "forecast")
_DEFAULT_TARGET_PCT = 95.0
_FOLDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class PodSeries:
    """One pod's use and allocation, to draw or to explain."""

    times: Floats
    """Seconds since the pod's first sample."""
    use: Floats
    allocation: Floats
    """NaN in the first window."""


@dataclass(frozen=True, eq=False)
class SizedResource:
    """What one policy gave of one resource."""

    usage: Usage
    allocation: Floats
    """Per window of `usage`."""
    score: AllocationScore

    def trace(self, pod: str) -> PodSeries:
        """The samples of one pod."""
        if pod not in self.usage.pods:
            raise ProvisionError(f"pod {pod} has no {self.usage.resource} to draw")
        windows = np.flatnonzero(self.usage.pod == self.usage.pods.index(pod))
        start = self.usage.starts[windows[0]]
        end = self.usage.starts[windows[-1]] + self.usage.counts[windows[-1]]
        given = np.repeat(self.allocation[windows], self.usage.counts[windows])
        return PodSeries(self.usage.times[start:end], self.usage.use[start:end], given)


@dataclass(frozen=True, eq=False, repr=False)
class RightsizeResult:
    """What `rightsize` found: policy -> resource -> how it went."""

    sized: Mapping[str, Mapping[str, SizedResource]]
    window_s: float
    value: Value
    target_pct: float | None
    outlooks: Mapping[str, ExpectedPhases]
    """Resource -> the phases before each window, where a model was given."""

    def to_polars(self) -> pl.DataFrame:
        """A row for each resource and policy, with the fields of `AllocationScore`."""
        import polars as pl

        return pl.DataFrame(
            [
                {"resource": resource, "policy": policy, **asdict(by_resource[resource].score)}
                for resource in next(iter(self.sized.values()))
                for policy, by_resource in self.sized.items()
            ],
            infer_schema_length=None,
        )

    def plot(self, resource: str | None = None) -> Figure:
        """Allocation against the share of samples that had enough; of the first resource unless
        one is named."""
        from presage.provision.report import draw_tradeoff

        names = list(next(iter(self.sized.values())))
        if resource is not None and resource not in names:
            raise ProvisionError(f"{resource!r} was not sized; there are {', '.join(names)}")
        return draw_tradeoff(self, resource or names[0])

    def __repr__(self) -> str:
        return repr(self.to_polars())

    def _repr_html_(self) -> str:
        frame = self.to_polars()
        rows = [
            (row[0], [row[1], *("–" if value is None else f"{value:,.4g}" for value in row[2:])])
            for row in frame.iter_rows()
        ]
        title = f"Right-sizing every {self.window_s:g} s"
        return html_table(title, [name.replace("_", " ") for name in frame.columns], rows)

    def to_json(self) -> dict[str, dict[str, dict[str, float | int | None]]]:
        """What `presage rightsize --json` prints."""
        return {
            policy: {resource: one.score.to_json() for resource, one in by_resource.items()}
            for policy, by_resource in self.sized.items()
        }


def rightsize(
    series: Sequence[Series],
    policies: Sequence[str],
    window_s: float,
    *,
    model: PhaseSource | None = None,
    margin: float = 0.0,
    target_pct: float | None = None,
    value: str = "mean+2sd",
    slow_reduction: float | None = None,
    ceilings: Mapping[str, float] | None = None,
    seed: int = 0,
    kin: Mapping[str, str] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> RightsizeResult:
    """Replay telemetry under each policy. `target_pct` sets the margin of each, and `margin`
    is not used then; `ceilings` has the most of a resource that is ever given; `kin` names the
    workload of pods in the training, so that margins are set for workloads that nobody has seen
    (without, pods that are alike count as one workload); `report` hears of progress."""
    chosen = _checked(policies, window_s, model, margin, target_pct, slow_reduction)
    wanted = Value.parse(value)
    names = resources_in(series)
    if model is not None:
        trained = resources_in(model.training)
        names = [name for name in names if name in trained]
        if not names:
            raise ProvisionError(
                f"the bundle was fitted on {', '.join(trained) or 'no resource'}, which this "
                "telemetry does not have; fit a bundle on telemetry of this kind"
            )
    elif not names:
        raise ProvisionError("this telemetry has no resource to size; name a column cpu or memory")
    outlook = trained_outlook = None
    if model is not None and (set(chosen) & set(_NEED_BUNDLE)):
        outlook = ExpectedPhases.of(model, series, window_s)
        trained_outlook = ExpectedPhases.of(model, model.training, window_s)
    families = kin
    if families is None and model is not None and target_pct is not None:
        families = alike(model.training)
    sized: dict[str, dict[str, SizedResource]] = {policy: {} for policy in chosen}
    outlooks = {}
    for place, name in enumerate(names):
        usage = Usage.of(series, name, window_s)
        if usage.first.all():
            continue
        training = Usage.of(model.training, name, window_s) if model is not None else None
        relatives = _kin(training, families) if training is not None else None
        bench = _Bench(
            usage, training, outlook, trained_outlook, wanted, target_pct, seed, relatives
        )
        rules = AllocationRules(slow_reduction, (ceilings or {}).get(name))
        if outlook is not None:
            outlooks[name] = bench.now
        for at, policy in enumerate(chosen):
            report(place * len(chosen) + at, len(names) * len(chosen))
            mine = bench.margin(policy, rules) if target_pct is not None else margin
            given = allocate(usage, bench.wish(policy), mine, rules)
            sized[policy][name] = SizedResource(usage, given, score(usage, given, mine))
    if not any(sized.values()):
        raise ProvisionError(
            f"no pod is longer than one window of {window_s:g} s; choose a shorter --window"
        )
    report(1, 1)
    return RightsizeResult(sized, window_s, wanted, target_pct, outlooks)


@dataclass(frozen=True, eq=False)
class _Bench:
    """Wishes for the telemetry asked about, and for the training, of one resource."""

    usage: Usage
    training: Usage | None
    outlook: ExpectedPhases | None
    trained_outlook: ExpectedPhases | None
    value: Value
    target_pct: float | None
    seed: int
    kin: Ints | None = None

    @cached_property
    def now(self) -> ExpectedPhases:
        """The phases before each window."""
        assert self.outlook is not None  # checked before
        return self.outlook.before(self.usage)

    @cached_property
    def trained_now(self) -> ExpectedPhases:
        """The same for the training."""
        assert self.trained_outlook is not None
        assert self.training is not None
        return self.trained_outlook.before(self.training)

    def table(self, fold: int | None = None) -> PhaseTable:
        """What phases use, by the training; with `fold`, by the pods outside of it."""
        assert self.trained_outlook is not None
        assert self.training is not None
        usage = self.training
        phase = self.trained_outlook.phase[usage.places]
        use = usage.use
        if fold is not None and len(usage.pods) > 1:
            outside = np.repeat(self._fold_of[usage.pod] != fold, usage.counts)
            use, phase = use[outside], phase[outside]
        return PhaseTable.measured(use, phase, self.trained_outlook.share.shape[1], self.value)

    @property
    def _fold_of(self) -> Ints:
        """The fold of each pod of the training; kin are in one."""
        assert self.training is not None
        pods = np.arange(len(self.training.pods)) if self.kin is None else self.kin
        return np.asarray(pods % _FOLDS, np.int64)

    @property
    def foresees(self) -> bool:
        """Whether the training has enough windows for a forecast; without, phases alone decide."""
        return self.training is not None and UsageForecaster.can_learn(self.training)

    @cached_property
    def forecaster(self) -> UsageForecaster:
        """Fitted on the training."""
        assert self.training is not None
        target = _DEFAULT_TARGET_PCT if self.target_pct is None else self.target_pct
        return UsageForecaster.fit(
            self.training, self.trained_now, self.table(), target, self.seed, self.kin
        )

    def wish(self, policy: str) -> Wish:
        """What a policy wants for the telemetry asked about."""
        if policy == "forecast" and self.foresees:
            return self.forecaster.wish(self.usage, self.now)
        if policy in ("phase", "forecast"):
            return known.by_phase(self.usage, self.value, self.now, [self.table()])
        return self._plain(policy, self.usage)

    def margin(self, policy: str, rules: AllocationRules) -> float:
        """The smallest margin with which a policy fulfils the target on the training."""
        assert self.training is not None
        assert self.target_pct is not None
        if policy == "forecast" and self.foresees:
            # Its price has been set for the target, with some caution.
            own = self.forecaster.own_wish()
            return margin_for(self.training, own, rules, self.target_pct, 0.0, self.kin)
        if policy in ("phase", "forecast"):
            folds = [self.table(fold) for fold in range(_FOLDS)]
            each = [folds[fold] for fold in self._fold_of]
            wish = known.by_phase(self.training, self.value, self.trained_now, each)
        else:
            wish = self._plain(policy, self.training)
        return margin_for(self.training, wish, rules, self.target_pct, kin=self.kin)

    def _plain(self, policy: str, usage: Usage) -> Wish:
        if policy == "static":
            worst = self.usage if self.training is None else self.training
            return known.static(usage, float(worst.use.max()))
        if policy in ("vpa", "krr"):
            return known.vpa(usage) if policy == "vpa" else known.krr(usage)
        return (known.dynamic if policy == "dynamic" else known.adaptive)(usage, self.value)


def _kin(training: Usage, kin: Mapping[str, str] | None) -> Ints | None:
    """A number for the workload of each pod; a pod that nobody names a workload of is alone."""
    if not kin:
        return None
    names = [kin.get(pod, f"\0{pod}") for pod in training.pods]
    return np.asarray(np.unique(names, return_inverse=True)[1].reshape(-1), np.int64)


def _checked(
    policies: Sequence[str],
    window_s: float,
    model: PhaseSource | None,
    margin: float,
    target_pct: float | None,
    slow_reduction: float | None,
) -> list[str]:
    """The policies, each once; refuses what makes no sense."""
    chosen = list(dict.fromkeys(policies))
    for policy in chosen:
        if policy not in POLICIES:
            raise ProvisionError(f"there is no policy '{policy}'; there are {', '.join(POLICIES)}")
        if policy in _NEED_BUNDLE and model is None:
            raise ProvisionError(
                f"the policy '{policy}' needs phases: give --bundle (presage phases fit makes one)"
            )
    if not chosen:
        raise ProvisionError(f"name at least one policy; there are {', '.join(POLICIES)}")
    if not (np.isfinite(window_s) and window_s > 0):
        raise ProvisionError("--window must be longer than nothing, e.g. 10m")
    if not (np.isfinite(margin) and margin > -1):
        raise ProvisionError("--margin is a share such as 0.05, above -1")
    if slow_reduction is not None and not 0 <= slow_reduction <= 1:
        raise ProvisionError("slow reduction is a share between 0 and 1")
    if target_pct is None:
        return chosen
    if not 0 < target_pct <= 100:
        raise ProvisionError("--target-fulfilment is a percentage above 0, up to 100")
    if model is None:
        raise ProvisionError(
            "--target-fulfilment sets margins on the telemetry of a bundle: give --bundle, "
            "or a --margin instead"
        )
    if not any(len(one) for one in model.training):
        raise ProvisionError(
            "the bundle has kept no telemetry to set margins on; fit it again, or give --margin"
        )
    return chosen
