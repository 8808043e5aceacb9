"""Telemetry with the phase of every sample: what `presage.phases` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.model.errors import TelemetryError
from presage.observe.phases.model import PhaseModel
from presage.observe.phases.report import draw_usage, names_to_show
from presage.page import counted, html_table
from presage.telemetry.series import Series

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["Phasing"]

Ints = npt.NDArray[np.int64]
_NAMES_SHOWN = 6


@dataclass(frozen=True, eq=False, repr=False)
class Phasing:
    """Pods and a model that knows their phases."""

    model: PhaseModel
    series: Sequence[Series]

    @cached_property
    def labels(self) -> list[Ints]:
        """For each pod the phase of each sample; −1 where it has none."""
        return self.model.predict_many(self.series)

    @cached_property
    def table(self) -> pl.DataFrame:
        """A row for each phase: how much of it there is here, the median time it stays, and what
        it uses (mean and standard deviation, as measured when the model was fitted)."""
        known, label = self.model.statistics, np.concatenate([*self.labels, np.empty(0, int)])
        here = np.bincount(label[label >= 0], minlength=self.model.n_phases)
        columns: dict[str, object] = {
            "phase": np.arange(self.model.n_phases),
            "share": here / max(1, here.sum()),
            "stays_s": known.dwell_s[:, 2],
        }
        for at, name in enumerate(known.names):
            columns |= {f"{name}_mean": known.mean[:, at], f"{name}_sd": known.sd[:, at]}
        return pl.DataFrame(columns).filter(here + known.samples > 0)

    def to_polars(self) -> pl.DataFrame:
        """A row for each sample: pod, time_s, phase; null where it has none."""
        lengths = [len(pod) for pod in self.series]
        names = pl.Series("pod", [pod.pod for pod in self.series], dtype=pl.String)
        frame = pl.DataFrame(
            {
                "pod": names.gather(np.repeat(np.arange(len(lengths)), lengths)),
                "time_s": np.concatenate([*(pod.times for pod in self.series), np.empty(0)]),
                "phase": np.concatenate([*self.labels, np.empty(0, np.int64)]),
            }
        )
        return frame.with_columns(pl.when(pl.col("phase") >= 0).then("phase").alias("phase"))

    def plot(self, pod: str | None = None) -> Figure:
        """The use of a pod with its phases; the one with the most phases unless one is named."""
        places = {each.pod: at for at, each in enumerate(self.series)}
        if pod is not None and pod not in places:
            raise TelemetryError(f"there is no pod {pod!r}; there are {', '.join(places)[:200]}")
        at = None if pod is None else places[pod]
        return draw_usage(self.model, self.series, self.labels, at)

    def save(self, path: str | Path) -> None:
        """Keep the model in a bundle, as `presage phases fit` does."""
        self.model.save(path)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        names = names_to_show(self.series, self.model.features)[:_NAMES_SHOWN]
        rows = []
        for row in self.table.iter_rows(named=True):
            use = [f"{row[f'{name}_mean']:,.4g} ± {row[f'{name}_sd']:,.2g}" for name in names]
            rows.append((row["phase"], [f"{row['share']:.1%}", f"{row['stays_s']:,.4g}", *use]))
        pods = counted(len(self.series), "pod")
        title = f"{self.model.n_phases} phases by {self.model.method} in {pods}"
        return html_table(title, ["phase", "share", "stays (s)", *names], rows)
