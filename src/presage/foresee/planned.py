"""The answer to how a training should be run: ways that no other beats, as table, plot and JSON.
Nothing here predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from presage.foresee.answer import Domain, Quantiles
from presage.foresee.goals import TrainingGoal
from presage.model.setup import Setup
from presage.page import COLOURS, duration_text, figure, html_table

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

__all__ = ["SURE", "PlanOption", "TrainingPlan", "money_span", "money_text", "time_span"]

SURE = 0.8
"""The chance to fit that a way needs to be recommended."""
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_HEADS = ("GPUs", "spread", "checkpointing", "batch", "fits", "time (10–90 %)", "USD (10–90 %)")


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One way to run a training, and what it would take."""

    gpu: str
    setup: Setup
    micro_batch: int
    """Samples that a replica takes in one go."""
    memory_mib: Quantiles
    """Of each GPU."""
    room_mib: float
    chance_fits: float
    step_ms: Quantiles
    time_s: Quantiles
    usd: Quantiles | None
    """None for a GPU without a price."""
    per_s: float
    """Tokens, or samples, of all GPUs together."""
    domain: Domain
    on_front: bool = False
    """No other way is as fast, as cheap and as likely to fit, and better in one of them."""

    @property
    def gpus(self) -> int:
        """How many."""
        return self.setup.gpus

    @property
    def spread(self) -> str:
        """How they share the work, as `--parallel` takes it."""
        return str(self.setup.parallel)

    @property
    def label(self) -> str:
        """In a few words: `8 × h100-80g, fsdp`."""
        spread = f", {self.spread}" if self.gpus > 1 else ""
        kept = self.setup.checkpoint
        again = f", ckpt {kept}" if kept != "none" else ""
        return f"{self.gpus} × {self.gpu}{spread}{again}"

    @property
    def batch_text(self) -> str:
        """`4×8`: micro-batch, and how many of them are accumulated."""
        many = self.setup.accumulate
        return f"{self.micro_batch}×{many}" if many > 1 else str(self.micro_batch)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            **{"gpu": self.gpu, "gpus": self.gpus, "parallel": self.spread},
            **{"checkpoint": self.setup.checkpoint, "micro_batch": self.micro_batch},
            **{"accumulate": self.setup.accumulate, "chance_fits": round(self.chance_fits, 3)},
            "memory_mib": asdict(self.memory_mib),
            "room_mib": self.room_mib,
            "step_ms": asdict(self.step_ms),
            "time_s": asdict(self.time_s),
            "usd": None if self.usd is None else asdict(self.usd),
            "per_s": self.per_s,
            "domain": asdict(self.domain),
            "on_front": self.on_front,
        }


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a training could be run."""

    name: str
    goal: TrainingGoal
    options: tuple[PlanOption, ...]
    """Every way that was looked at and can be, the fastest first."""
    left_out: Mapping[str, int]
    """How many ways were left out, by why."""
    assumptions: tuple[str, ...] = ()

    @property
    def front(self) -> tuple[PlanOption, ...]:
        """Ways that no other beats in time, money and the chance to fit."""
        return tuple(option for option in self.options if option.on_front)

    @property
    def cheapest(self) -> PlanOption | None:
        """The cheapest one that likely fits, within the deadline; None without prices."""
        return _least(self._likely(deadline=True), _dear)

    @property
    def fastest(self) -> PlanOption | None:
        """The fastest one that likely fits, within the budget."""
        return _least(self._likely(budget=True), _slow)

    @property
    def best(self) -> PlanOption | None:
        """The cheapest within the deadline; with a budget and no deadline, the fastest within it;
        without prices, the fastest."""
        both = self._likely(deadline=True, budget=True)
        if self.goal.budget_usd is not None and self.goal.deadline_s is None:
            return _least(both, _slow)
        return _least(both, _dear) or _least(both, _slow)

    def _likely(self, *, deadline: bool = False, budget: bool = False) -> list[PlanOption]:
        """Options that likely fit and, at their 90 % quantile, keep the limits."""
        most_s = self.goal.deadline_s if deadline else None
        most_usd = self.goal.budget_usd if budget else None
        return [
            option
            for option in self.options
            if option.chance_fits >= SURE
            and (most_s is None or option.time_s.p90 <= most_s)
            and (most_usd is None or (option.usd is not None and option.usd.p90 <= most_usd))
        ]

    @property
    def table(self) -> pl.DataFrame:
        """A row for each option; quantiles are columns such as time_s_p90."""
        import polars as pl

        rows = []
        for option in self.options:
            row = option.to_dict()
            del row["domain"]
            for name in ("memory_mib", "step_ms", "time_s", "usd"):
                values = row.pop(name) or dict.fromkeys(("p10", "p50", "p90"))
                row |= {f"{name}_{at}": value for at, value in values.items()}
            rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""

        def one(option: PlanOption | None) -> dict[str, Any] | None:
            return None if option is None else option.to_dict()

        return {
            "name": self.name,
            "goal": {**asdict(self.goal), "steps": self.goal.steps, "unit": self.goal.unit},
            **{"best": one(self.best), "cheapest": one(self.cheapest)},
            "fastest": one(self.fastest),
            "options": [option.to_dict() for option in self.options],
            "left_out": dict(self.left_out),
            "assumptions": list(self.assumptions),
        }

    def rows(self) -> list[tuple[str, list[str]]]:
        """The front for a table of `heads`: the GPUs, and the other cells."""
        return [
            (
                f"{option.gpus} × {option.gpu}",
                [
                    *(option.spread, option.setup.checkpoint, option.batch_text),
                    f"{100 * option.chance_fits:.0f} %",
                    time_span(option.time_s),
                    "no price" if option.usd is None else money_span(option.usd),
                ],
            )
            for option in self.front
        ]

    @property
    def heads(self) -> tuple[str, ...]:
        """Of the table that `rows` fill."""
        return _HEADS

    def chart(self) -> dict[str, Any]:
        """Time against money: the front as a line, the other options beside it."""
        priced = [option for option in self.options if option.usd is not None]
        data: list[dict[str, Any]] = []
        for at, gpu in enumerate(dict.fromkeys(option.gpu for option in priced)):
            mine = [option for option in priced if option.gpu == gpu]
            data.append(
                {
                    **{"type": "scatter", "mode": "markers", "name": gpu},
                    "x": [option.time_s.p50 / 3600 for option in mine],
                    "y": [option.usd.p50 for option in mine if option.usd is not None],
                    "text": [_hover(option) for option in mine],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {
                        "color": COLOURS[at % len(COLOURS)],
                        "size": [12 if option.on_front else 7 for option in mine],
                        "opacity": [1.0 if option.on_front else 0.45 for option in mine],
                    },
                }
            )
        layout = {
            "xaxis": {"title": {"text": "time (h)"}, "type": "log"},
            "yaxis": {"title": {"text": "money (USD)"}, "type": "log"},
            "hovermode": "closest",
        }
        return {"data": data, "layout": layout}

    def plot(self) -> Figure:
        """Time against money; large dots are the front."""
        return figure(self.chart(), f"{self.name}: {self.goal.amount:,} {self.goal.unit}")

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.goal.amount:,} {self.goal.unit}, ways that no other beats"
        return html_table(title, _HEADS, self.rows())


def money_text(usd: float) -> str:
    """`$0.42`, `$35`, `$12,400`."""
    return f"${_plain(usd, 3)}" if usd >= 10 else f"${usd:.2f}"


def money_span(of: Quantiles) -> str:
    """`$192 ($163–231)`."""
    return f"{money_text(of.p50)} ({money_text(of.p10)}–{money_text(of.p90)[1:]})"


def time_span(of: Quantiles) -> str:
    """`3.2 h (2.7–3.8)`: in the unit that suits the middle."""
    size, unit = next((one for one in _UNITS if of.p50 >= 1.5 * one[0]), (1.0, "s"))
    low, mid, high = (_plain(value / size, 2) for value in (of.p10, of.p50, of.p90))
    return f"{mid} {unit} ({low}–{high})"


def _plain(value: float, digits: int) -> str:
    """So many digits that count, and all before the point."""
    text = f"{float(f'{value:.{digits}g}'):,.{digits}f}" if value < 10 else ""
    return text.rstrip("0").rstrip(".") or f"{float(f'{value:.{digits}g}'):,.0f}"


def _least(
    options: list[PlanOption], of: Callable[[PlanOption], float | None]
) -> PlanOption | None:
    known = [(value, at) for at, option in enumerate(options) if (value := of(option)) is not None]
    return options[min(known)[1]] if known else None


def _dear(option: PlanOption) -> float | None:
    return None if option.usd is None else option.usd.p50


def _slow(option: PlanOption) -> float:
    return option.time_s.p50


def _hover(option: PlanOption) -> str:
    usd = "" if option.usd is None else f", {money_text(option.usd.p50)}"
    return (
        f"{option.label}, batch {option.batch_text}: {duration_text(option.time_s.p50)}{usd}, "
        f"fits with {100 * option.chance_fits:.0f} %"
    )
