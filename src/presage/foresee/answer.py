"""The answer to what a job will need: memory, utilization, time and money on each GPU, with
intervals, what was assumed, and how far from anything measured it is. Nothing here computes one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from presage.learn import Floats
from presage.page import figure, html_table

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

    from presage.foresee.bursts.use import Distributed

__all__ = ["Cost", "Domain", "OnGpu", "Prediction", "Quantiles", "Sharing"]


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
class Domain:
    """How far an answer is from what was measured."""

    distance: float
    """From 0, like what was measured, to 1, like nothing that was."""
    words: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Money by the price list; of all GPUs together."""

    usd_per_hour: float
    usd_per_million: float
    """Samples, or tokens where the model reads them."""
    unit: str
    """`samples` or `tokens`."""


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What is foreseen on one kind of GPU: memory and use of each of them, time of all."""

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
    chance_fits: float = 1.0
    """From 0 to 1."""
    samples_per_s: Quantiles | None = None
    tokens_per_s: Quantiles | None = None
    """Of all GPUs together; None for a model that does not read tokens."""
    domain: Domain = Domain(1.0, "not known")
    cost: Cost | None = None
    """None for a GPU without a price."""


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
    assumptions: list[str] = field(default_factory=list)
    """What was taken for granted, since nobody said otherwise."""
    setting: str | None = None
    """How the training is distributed, where somebody asked for its bursts."""
    bursts: dict[str, dict[str, Quantiles]] | None = None
    """How it pulses there, by resource: `burst_pct` or `burst_mib_s`, `burst_ms`, `idle_ms`."""
    distributed: Distributed | None = None
    """How long its steps take there, on GPUs of the first kind."""

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
        if self.setting is None:
            del out["setting"], out["bursts"], out["distributed"]
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


@dataclass(frozen=True, slots=True)
class Sharing:
    """Two jobs on one GPU: the speed of each against running alone."""

    first: Quantiles
    second: Quantiles
    cannot_share: float
    """Probability that they do not fit together."""
    reason: str
