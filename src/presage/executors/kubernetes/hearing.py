"""What the steps beside the workers of a run say: how far the job is, and what its workers use.

Rows of telemetry are written down, each once; progress is told when it is new and the first worker
says it. Nothing is asked for here, and nothing is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from presage.executors.node.messages import ProgressReport, StepWord
from presage.executors.node.samples import SampleLog
from presage.telemetry.rows import Row

__all__ = ["StepsHeard"]


class StepsHeard:
    """Any thread may tell what it heard."""

    def __init__(self, telemetry: Path, tell: Callable[[ProgressReport], None]) -> None:
        self._telemetry, self._tell = telemetry, tell
        self._report: ProgressReport | None = None
        self.used_mib: dict[str, float | None] = {}
        """What each worker held last."""

    def hear(self, worker: str, word: StepWord | Row, first: str) -> None:
        """A step said something; `first` is the worker that speaks for all."""
        if isinstance(word, Row):
            self.used_mib[worker] = word.rss_mib
            self._samples.add([word._replace(worker=worker)])
            return
        report = word.progress if worker == first else None
        if report is not None and report != self._report:
            self._report = report
            self._tell(report)

    @cached_property
    def _samples(self) -> SampleLog:
        return SampleLog(self._telemetry)
