"""From a graph, a batch and GPUs to one answer: memory, utilization, step time, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from presage.foresee import estimators
from presage.foresee.allocator import live_peak
from presage.foresee.gpus import Gpu
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.interference import JobAlone
from presage.foresee.memory import largest_batch, memory_features
from presage.foresee.steptime import LATEST, Operators, step_features
from presage.foresee.utilization import Features, profile_of
from presage.learn import Floats
from presage.model.errors import GraphError
from presage.page import figure, html_table

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

__all__ = ["OnGpu", "Prediction", "Quantiles", "Sharing", "predict_graph", "share", "verdict"]

_MEASURED_GPU = "rtx3090"
_MEASURED_PRECISION = "amp"
_FULL_MS = 300.0
"""Roofline of a step that fills a GPU, as all measured steps did: by which factor it is off is
asked at the batch that does, and taken over to a smaller one."""
_WIDER = 1.6
"""How much wider a step time's interval is, in logarithms, for a GPU or a precision that no
measured training step had."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Ten, fifty and ninety percent."""

    p10: float
    p50: float
    p90: float

    @classmethod
    def of(cls, row: Floats, digits: int = 1) -> Quantiles:
        return cls(*(round(float(value), digits) for value in row))


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What is foreseen on one GPU."""

    memory_mib: Quantiles
    breakdown: dict[str, float]
    """MiB by what they are for; adds up to the median."""
    gpu_util_pct: Quantiles
    step_ms: Quantiles
    max_batch: int
    fits: bool
    headroom_mib: float
    """What is left at the 90 % quantile; negative if it does not fit."""
    reason: str
    mattered: dict[str, float]
    """The features that moved the step time most from what the specifications say, as factors."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer; per sample and forward where not said otherwise."""

    name: str
    batch: int
    macs: float
    flops: float
    params: int
    activations: float
    options: dict[str, Any]
    gpus: dict[str, OnGpu]
    """By name, in the order asked for; what follows below is that of the first."""
    evidence: list[str] = field(default_factory=list)

    @property
    def memory_mib(self) -> Quantiles:
        """GPU memory at its peak."""
        return self._first.memory_mib

    @property
    def gpu_util_pct(self) -> Quantiles:
        """How busy it keeps the GPU."""
        return self._first.gpu_util_pct

    @property
    def step_ms(self) -> Quantiles:
        """How long a step takes."""
        return self._first.step_ms

    @property
    def fits(self) -> bool:
        """Whether the 90 % quantile of memory fits."""
        return self._first.fits

    @property
    def max_batch(self) -> int:
        """The largest batch that fits."""
        return self._first.max_batch

    @property
    def reason(self) -> str:
        """Why it fits or does not, in words."""
        return self._first.reason

    @property
    def _first(self) -> OnGpu:
        return next(iter(self.gpus.values()))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        out = asdict(self)
        for gpu in out["gpus"].values():
            gpu["memory_mib"]["breakdown"] = gpu.pop("breakdown")
        return out

    def to_polars(self) -> pl.DataFrame:
        """A row for each GPU; quantiles are columns such as memory_mib_p90."""
        import polars as pl

        return pl.DataFrame(
            {
                "gpu": name,
                "fits": on.fits,
                **{
                    f"{what}_{at}": getattr(getattr(on, what), at)
                    for what in _QUANTITIES
                    for at in ("p10", "p50", "p90")
                },
                **{"max_batch": on.max_batch, "headroom_mib": on.headroom_mib},
                "reason": on.reason,
            }
            for name, on in self.gpus.items()
        )

    def plot(self) -> Figure:
        """Memory, utilization and step time on each GPU: the median, and from 10 to 90 %."""
        data: list[dict[str, Any]] = []
        layout: dict[str, Any] = {"showlegend": False}
        for at, (what, title) in enumerate(_QUANTITIES.items()):
            seen = [getattr(on, what) for on in self.gpus.values()]
            axis = "" if at == 0 else str(at + 1)
            error = {
                **{"type": "data", "symmetric": False},
                "array": [each.p90 - each.p50 for each in seen],
                "arrayminus": [each.p50 - each.p10 for each in seen],
            }
            data.append(
                {
                    **{"type": "bar", "x": list(self.gpus), "y": [each.p50 for each in seen]},
                    **{"error_y": error, "xaxis": f"x{axis}", "yaxis": f"y{axis}"},
                }
            )
            layout[f"xaxis{axis}"] = {"domain": [at / 3, at / 3 + 0.25], "anchor": f"y{axis}"}
            layout[f"yaxis{axis}"] = {"title": {"text": title}, "anchor": f"x{axis}"}
        return figure({"data": data, "layout": layout}, f"{self.name}, batch {self.batch:,}")

    def _repr_html_(self) -> str:
        rows = []
        for name, on in self.gpus.items():
            seen = [getattr(on, what) for what in _QUANTITIES]
            cells = [f"{q.p50:,.4g} ({q.p10:,.4g}–{q.p90:,.4g})" for q in seen]
            rows.append((name, [*cells, f"{on.max_batch:,}", on.reason]))
        heads = ["GPU", *_QUANTITIES.values(), "max batch", ""]
        return html_table(f"{self.name}, batch {self.batch:,}: median (10–90 %)", heads, rows)


_QUANTITIES = {
    "memory_mib": "memory (MiB)",
    "gpu_util_pct": "GPU use (%)",
    "step_ms": "step (ms)",
}


def predict_graph(graph: OpGraph, batch: int, gpus: Sequence[Gpu]) -> Prediction:
    """Foresee a graph at a batch on some GPUs."""
    if not len(graph):
        raise GraphError("the model computes nothing")
    row = memory_features(graph, batch)
    by_role = live_peak(graph, batch).by_role
    estimator = estimators.memory().graph
    needs = estimator.needs(row[None, :])[0]
    shows = (
        needs if graph.options.get("inference") else estimator.predict_interval(row[None, :])[0]
    )
    breakdown = {name: round(size, 1) for name, size in estimator.parts(row, by_role).items()}
    operators = Operators.of(graph)
    answers = {}
    for gpu in gpus:
        step, mattered = _step(graph, operators, batch, gpu)
        memory = np.maximum(needs, np.minimum(shows, gpu.usable_mib))
        answers[gpu.name] = _on(graph, batch, gpu, memory, breakdown, step, mattered)
    macs = graph.forward_macs()
    return Prediction(
        name=graph.name,
        batch=batch,
        macs=macs,
        flops=2 * macs,
        params=graph.params,
        activations=graph.activations(),
        options=dict(graph.options),
        gpus=answers,
        evidence=_evidence(graph, gpus),
    )


def _on(
    graph: OpGraph,
    batch: int,
    gpu: Gpu,
    memory: Floats,
    breakdown: dict[str, float],
    step: Floats,
    mattered: dict[str, float],
) -> OnGpu:
    busy = estimators.utilization_of(Features.of([profile_of(graph, batch, gpu)]))[0]
    most = largest_batch(estimators.memory().graph, graph, float(gpu.usable_mib))
    return OnGpu(
        memory_mib=Quantiles.of(memory),
        breakdown=breakdown,
        gpu_util_pct=Quantiles.of(np.clip(busy, 0, 100)),
        step_ms=Quantiles.of(step, 3),
        max_batch=most,
        **verdict(memory, gpu, most, batch),
        mattered={name: round(value, 3) for name, value in mattered.items()},
    )


def verdict(memory: Sequence[float] | Floats, gpu: Gpu, most: int, batch: int) -> dict[str, Any]:
    """Whether quantiles of memory fit: the fields `fits`, `headroom_mib` and `reason`."""
    room = float(gpu.usable_mib)
    return {
        "fits": bool(memory[2] <= room),
        "headroom_mib": round(room - float(memory[2]), 1),
        "reason": _reason(memory, room, most, batch),
    }


def _reason(memory: Sequence[float] | Floats, room: float, most: int, batch: int) -> str:
    need = f"{memory[2] / 1024:.1f} of {room / 1024:.1f} GiB at the 90 % quantile"
    if memory[2] <= room:
        return f"fits: {need}; batch up to {most:,}"
    if memory[0] <= room:
        return f"may not fit: {need}, {memory[1] / 1024:.1f} at the median; batch {most:,} is safe"
    less = f"batch {most:,} would" if most else "not even one sample would"
    return f"does not fit: {need}; {less} of the {batch:,} asked"


def _step(
    graph: OpGraph, operators: Operators, batch: int, gpu: Gpu
) -> tuple[Floats, dict[str, float]]:
    precision = str(graph.options.get("precision", "fp32"))
    if graph.options.get("inference"):
        return _inference(graph, batch, gpu, precision), {}
    model = estimators.step_time().graph
    row = np.append(step_features(operators, batch, gpu, precision), 0.0)
    base = row[0]
    if base < _FULL_MS:
        row = np.append(step_features(operators, batch * _FULL_MS / base, gpu, precision), 0.0)
    step = model.predict_interval(row[None, :])[0] * (base / row[0])
    wider = 1.0
    wider *= _WIDER if gpu.name != _MEASURED_GPU else 1.0
    wider *= _WIDER if precision != _MEASURED_PRECISION else 1.0
    return step[1] * (step / step[1]) ** wider, model.explain(row)


def _inference(graph: OpGraph, batch: int, gpu: Gpu, precision: str) -> Floats:
    peak = gpu.tflops("fp32" if precision == "fp32" else "fp16") * 1e12
    size = float(graph.inputs[0].shape[-1]) if graph.inputs else 224.0
    row = [
        graph.forward_macs() / 1e9,
        max(graph.activations(), 1.0) / 1e6,
        max(graph.params, 1) / 1e6,
        size,
        batch,
        peak,
        gpu.bandwidth_gbs * 1e9,
        0.0,
        0.0,
        float(precision == "bf16"),
        float(precision != "amp"),
        LATEST,
    ]
    step: Floats = estimators.step_time().infer.predict_interval(np.array([row]))[0]
    return step


def _evidence(graph: OpGraph, gpus: Sequence[Gpu]) -> list[str]:
    lines = [
        f"graph of {len(graph):,} operators, signature {graph.signature()}",
        f"{estimators.version('memory')}: measured on an A100; other GPUs get the same floor",
        f"{estimators.version('step_time')}: training measured on an RTX 3090 with amp, inference "
        "on four GPUs; others follow their specifications, with a wider interval",
        f"{estimators.version('utilization')}: real jobs on an A100, other GPUs by specification; "
        "without --loader the interval allows for jobs that wait for their samples",
    ]
    if graph.options.get("inference"):
        lines.append("memory and utilization of inference rest on measured training runs")
    return lines + list(graph.notes)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Two jobs on one GPU: the speed of each against running alone."""

    first: Quantiles
    second: Quantiles
    cannot_share: float
    """Probability that they do not fit together."""
    reason: str


def share(first: OpGraph, second: OpGraph, batches: tuple[int, int], gpu: Gpu) -> Sharing:
    """Foresee two graphs side by side on a GPU."""
    jobs = [_alone(g, b, gpu) for g, b in zip((first, second), batches, strict=True)]
    model = estimators.interference()
    speeds = [model.speed(jobs[0], [jobs[1]], gpu), model.speed(jobs[1], [jobs[0]], gpu)]
    cannot = float(estimators.sharing_limit().cannot_share(jobs, gpu))
    need = sum(job.memory_mib for job in jobs)
    room = gpu.usable_mib
    if need > room or cannot > 0.5:
        reason = f"should not share: {need / 1024:.1f} of {room / 1024:.1f} GiB together"
    else:
        slow = min(speed.p50 for speed in speeds)
        reason = f"may share: the slower one keeps about {100 * min(slow, 1):.0f} % of its speed"
    first_speed, second_speed = (
        Quantiles(*(round(v, 3) for v in (s.p10, s.p50, s.p90))) for s in speeds
    )
    return Sharing(first_speed, second_speed, round(cannot, 3), reason)


def _alone(graph: OpGraph, batch: int, gpu: Gpu) -> JobAlone:
    answer = predict_graph(graph, batch, [gpu]).gpus[gpu.name]
    moved = graph.at(graph.read, batch).sum() + graph.at(graph.written, batch).sum()
    return JobAlone(
        util_pct=answer.gpu_util_pct.p50,
        util_low_pct=answer.gpu_util_pct.p10,
        util_high_pct=answer.gpu_util_pct.p90,
        memory_mib=answer.memory_mib.p50,
        step_ms=answer.step_ms.p50,
        batch=batch,
        params_m=graph.params / 1e6,
        step_gflop=2 * float(graph.at(graph.macs, batch).sum()) / 1e9,
        step_gbyte=4 * float(moved) / 1e9,
    )
