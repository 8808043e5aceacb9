"""`presage.simulate`, `compare`, `make_trace` and `pipeline`: traces and policies in any form that
people have them, on the simulator.

Everything that can be wrong is looked at before the first job is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from presage.core.ports import Policy
from presage.edge import read_yaml
from presage.model.cluster import Node
from presage.model.errors import ConfigError, TelemetryError, UserError
from presage.policy import registry
from presage.policy.config import ConfigFile, GuardSection, PolicyConfig, QueueConfig
from presage.policy.own import OwnPolicy, Schedules, complete, find_own
from presage.policy.pipeline import Pipeline
from presage.sim.behaviour import WorldConfig, world_rules
from presage.sim.clusters import Cluster
from presage.sim.generate import KINDS
from presage.sim.generate import make_trace as generate
from presage.sim.result import Comparison, SimResult
from presage.sim.run import Progress
from presage.sim.run import simulate as run
from presage.sim.traces import Trace, read_trace
from presage.sim.usage import RecordedUse, recorded_uses
from presage.sim.world import WorldRules
from presage.telemetry.readers import read_telemetry

if TYPE_CHECKING:  # a simulation without advisors starts without the estimators
    from presage.control.simulated import Advised

__all__ = ["Study", "compare", "make_trace", "pipeline", "simulate", "usual_cluster"]


TraceLike: TypeAlias = str | PathLike[str] | pl.DataFrame | Trace
"""A file of any format that `read_trace` knows, a table with the same columns, or a trace."""
ClusterLike: TypeAlias = str | PathLike[str] | Iterable[Node]
"""`40x8`, `100x4:32c:128g`, a file, a `Cluster` or nodes."""
TelemetryLike: TypeAlias = str | PathLike[str] | pl.DataFrame
"""Files as `presage phases` reads them, or a table with the same columns."""
PolicyLike: TypeAlias = str | PathLike[str] | PolicyConfig | Schedules
"""A name such as `srtf`, `file.py:name`, a YAML file of pipelines, a configuration, or an object
of one's own."""
Chosen: TypeAlias = PolicyConfig | Schedules | OwnPolicy
Policies: TypeAlias = PolicyLike | Iterable[PolicyLike] | Mapping[str, PolicyLike]


def simulate(
    trace: TraceLike,
    cluster: ClusterLike,
    policy: PolicyLike | None = None,
    *,
    config: str | PathLike[str] | None = None,
    placement: str | None = None,
    format: str = "auto",
    estimates: str | None = None,
    restart_cost_s: float | None = None,
    seed: int = 0,
    telemetry: TelemetryLike | None = None,
    advise: Sequence[str] = (),
    check_every: int = 0,
    progress: Progress | None = None,
) -> SimResult:
    """Run every job of a trace on a cluster under one policy (`fifo` unless one is given).

    `config` is a YAML file of policies, queues and the behaviour of the world; `estimates` names a
    column of the trace that policies see instead of true durations. `telemetry` has what jobs
    used, by their ids, and `advise` names advisors (sizing, learning) that look at it while the
    run lasts: how well they did is the result's `advice`. `check_every=1` proves every
    invariant of the state after every step, for policies that are being written. `progress` is
    called with how many jobs are done, and how many there are.

        presage.simulate("philly.parquet", cluster="40x8", policy="srtf").summary["avg_jct_s"]
    """
    study = Study.of(
        trace,
        cluster,
        policy,
        config=config,
        placement=placement,
        format=format,
        estimates=estimates,
        restart_cost_s=restart_cost_s,
        seed=seed,
        telemetry=telemetry,
        advise=advise,
    )
    if len(study.policies) != 1:
        raise ConfigError(
            f"{policy or config} has the policies {', '.join(study.policies)}; name one of them "
            "and give the file as config, or compare them all"
        )
    return study.run(next(iter(study.policies)), progress, check_every)


def compare(
    trace: TraceLike,
    cluster: ClusterLike,
    policies: Policies | None = None,
    *,
    config: str | PathLike[str] | None = None,
    placement: str | None = None,
    format: str = "auto",
    estimates: str | None = None,
    restart_cost_s: float | None = None,
    seed: int = 0,
    telemetry: TelemetryLike | None = None,
    advise: Sequence[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Run a trace under several policies, one after the other; the rest is as in `simulate`.

    Policies are a list, or a dictionary that names them; those of `config` unless given.

        presage.compare("philly.parquet", cluster="40x8", policies=["fifo", MyPolicy()]).table
    """
    study = Study.of(
        trace,
        cluster,
        policies,
        config=config,
        placement=placement,
        format=format,
        estimates=estimates,
        restart_cost_s=restart_cost_s,
        seed=seed,
        telemetry=telemetry,
        advise=advise,
    )
    return study.compared([study.run(name, progress) for name in study.policies])


def make_trace(
    kind: str = "dlaas",
    jobs: int = 4000,
    *,
    cluster: ClusterLike | None = None,
    load: float | None = None,
    seed: int = 0,
) -> Trace:
    """A synthetic trace that offers `load` times the GPU time of a cluster while jobs arrive. The
    kinds are dlaas, poisson and diurnal; each has a cluster and a load of its own."""
    nodes = Cluster(usual_cluster(kind) if cluster is None else cluster)
    return generate(kind, jobs, seed, nodes.gpus, load)


def usual_cluster(kind: str) -> str:
    """The cluster that a kind of trace is made for when none is named."""
    return KINDS[kind].cluster if kind in KINDS else "30x8"


def pipeline(base: str | PolicyConfig = "fifo", **parts: Any) -> Pipeline:
    """A policy made of parts: those of a named policy or a configuration, some of them replaced by
    parts of one's own, such as `order=` or `placer=` (the fields of `Rules`)."""
    config = registry.policy_config(base) if isinstance(base, str) else base
    if config.guard is not None:
        raise ConfigError("a guarded policy is two pipelines; take the parts of one of them")
    rules = registry.pipeline(config).rules
    try:
        return Pipeline(replace(rules, **parts))
    except TypeError:
        known = ", ".join(type(rules).__dataclass_fields__)
        wrong = ", ".join(name for name in parts if not hasattr(rules, name))
        raise ConfigError(f"a pipeline has no part {wrong}; there are: {known}") from None


class SimulationFile(ConfigFile):
    """What `config` reads: policies and queues, and how the simulated world behaves."""

    world: WorldConfig = WorldConfig()


@dataclass(frozen=True, slots=True)
class Study:
    """A trace, a cluster and policies that were looked at and make sense."""

    trace: Trace
    cluster: Cluster
    policies: Mapping[str, Chosen]
    rules: WorldRules
    seed: int
    use_estimates: bool
    uses: Mapping[str, RecordedUse] = field(default_factory=dict)
    advise: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        trace: TraceLike,
        cluster: ClusterLike,
        policies: Policies | None,
        *,
        config: str | PathLike[str] | None,
        placement: str | None,
        format: str,
        estimates: str | None,
        restart_cost_s: float | None,
        seed: int,
        telemetry: TelemetryLike | None = None,
        advise: Sequence[str] = (),
    ) -> Study:
        """Read what was given; raises a `UserError` for the first thing that is wrong."""
        if restart_cost_s is not None and not (isfinite(restart_cost_s) and restart_cost_s >= 0):
            raise UserError("the restart cost is a finite number of seconds, 0 or more")
        file = read_yaml(Path(config), SimulationFile, ConfigError) if config else SimulationFile()
        if advise:
            _check_advisors(advise, telemetry)
        chosen, jobs = _chosen(policies, file, placement), read_trace(trace, format, estimates)
        return cls(
            policies=chosen,
            cluster=Cluster(cluster),
            trace=jobs,
            uses={} if telemetry is None else _uses(telemetry, jobs),
            advise=tuple(dict.fromkeys(advise)),
            rules=world_rules(file.world, restart_cost_s=restart_cost_s, seed=seed),
            seed=seed,
            use_estimates=estimates is not None,
        )

    def run(self, name: str, progress: Progress | None = None, check_every: int = 0) -> SimResult:
        """One of the policies."""
        chosen = self.policies[name]
        try:
            return run(
                self.trace,
                self.cluster,
                _made(chosen),
                name=name,
                rules=self.rules,
                seed=self.seed,
                use_estimates=self.use_estimates,
                uses=self.uses,
                advise=_advised(self.advise, self.cluster) if self.advise else None,
                progress=progress,
                check_every=check_every,
            )
        except Exception as error:
            if not isinstance(chosen, OwnPolicy) or isinstance(error, UserError):
                raise
            raise ConfigError(chosen.went_wrong(error)) from error

    def compared(self, results: Iterable[SimResult]) -> Comparison:
        """The results side by side."""
        return Comparison(self.trace, self.cluster, tuple(results))


def _check_advisors(names: Sequence[str], telemetry: TelemetryLike | None) -> None:
    from presage.control.simulated import check_advisors

    check_advisors(names)
    if telemetry is None:
        raise UserError(
            "advisors look at telemetry: say what the jobs used, with --telemetry FILE"
        )


def _advised(names: Sequence[str], cluster: Cluster) -> Advised:
    from presage.control.simulated import Advised

    return Advised(names, cluster)


def _uses(telemetry: TelemetryLike, trace: Trace) -> dict[str, RecordedUse]:
    """What the jobs of a trace used, by their ids."""
    columns = trace.jobs.select("job_id", "cpu_milli", "memory_mib")
    asked = {job: (cpu / 1000, float(mib)) for job, cpu, mib in columns.iter_rows()}
    uses = recorded_uses(read_telemetry(telemetry), asked)
    if not uses:
        raise TelemetryError(
            f"no job of trace {trace.name} has telemetry: a pod must be called by the id of a job"
        )
    return uses


def _chosen(
    policies: Policies | None, file: ConfigFile, placement: str | None
) -> dict[str, Chosen]:
    """The policies by name: those asked for, else all of the file's, else fifo."""
    if policies is None:
        policies = list(file.policies) or ["fifo"]
    elif isinstance(policies, str | PathLike | PolicyConfig) or not isinstance(policies, Iterable):
        policies = [policies]
    known = registry.pipelines(file)
    named = policies.items() if isinstance(policies, Mapping) else ((None, p) for p in policies)
    chosen: dict[str, Chosen] = {}
    for title, policy in named:
        for name, one in _read(policy, known, placement, file.guard):
            if (title or name) in chosen:
                raise ConfigError(
                    f"two policies are called {title or name}; name them in a dictionary"
                )
            chosen[title or name] = one
    if not chosen:
        raise ConfigError(f"no policy is given; there are: {', '.join(known)}")
    return chosen


def _read(
    policy: object,
    known: dict[str, PolicyConfig],
    placement: str | None,
    section: GuardSection,
) -> Iterator[tuple[str, Chosen]]:
    """A policy in whatever form, with a name; a file has several."""
    if isinstance(policy, str | PathLike):
        text = fspath(policy)
        own = find_own(text, known, _queues(known), section)
        if own is not None:
            if placement is not None:
                raise ConfigError(f"{own.name} places by itself; placement is for named policies")
            yield own.name, own
            return
        if text not in known and text.endswith((".yaml", ".yml")):
            file = read_yaml(Path(text), ConfigFile, ConfigError)
            known = registry.pipelines(file)
            names = list(file.policies)
            if not names:
                raise ConfigError(f"{text} has no policies")
        else:
            names = [text]
        for name in names:
            yield name, registry.policy_config(name, known, placement, section)
    elif isinstance(policy, PolicyConfig):
        yield policy.order, registry.policy_config("it", {"it": policy}, placement)
    elif isinstance(policy, type) or not callable(getattr(policy, "schedule", None)):
        what = f"the class {policy.__name__}" if isinstance(policy, type) else repr(policy)
        raise ConfigError(
            f"{what} is no policy; give a name ({', '.join(known)}), file.py:name, a YAML file, "
            "a PolicyConfig or an object with a method schedule"
        )
    elif placement is not None:
        raise ConfigError(f"{_name(policy)} places by itself; placement is for policies by name")
    else:
        yield _name(policy), policy  # type: ignore[misc]  # it has the method


def _name(policy: object) -> str:
    """How a policy of one's own is called: by its `name`, by the order of a pipeline, by class."""
    if isinstance(policy, Pipeline):
        policy = policy.rules.order
    for name in ("name", "__name__"):
        if isinstance(own_name := getattr(policy, name, None), str):
            return own_name
    return type(policy).__name__


def _made(chosen: Chosen) -> Policy:
    if isinstance(chosen, PolicyConfig):
        return registry.build(chosen)
    return chosen.make() if isinstance(chosen, OwnPolicy) else complete(chosen)


def _queues(known: Mapping[str, PolicyConfig]) -> Mapping[str, QueueConfig]:
    """The queues that all pipelines of a file share."""
    return known["fifo"].queues
