"""The phases of workloads on a server: runs are kept by workload in what it knows, and a model is
fitted on the latest of them in a process of its own, so that fitting never holds up anybody."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from presage.control.advisors.needs import workload
from presage.control.advisors.sizing import Sample
from presage.core.ports import Entry, Knowledge
from presage.manifest import Manifest
from presage.model.errors import PresageError, UserError
from presage.model.job import JobSpec
from presage.observe.phases import PhaseModel
from presage.store.sql import SqlStore

__all__ = ["StoredPhases", "sized_workload"]

log = logging.getLogger("presage.sizing")

_LEAST_SAMPLES = 60
"""A workload's phases are learned from runs with this many samples in all."""
_MOST_RUNS = 6
"""Runs that a workload's phases are learned from, the latest."""
_MOST_SAMPLES = 100_000
"""Of one run that are kept, the latest."""
_FIT_S = 120.0


def sized_workload(store: SqlStore, spec: JobSpec) -> str | None:
    """The workload whose phases a job has; None for one whose manifest keeps it out of
    right-sizing."""
    row = store.jobs.get(spec.id)
    manifest = Manifest.from_json(row.manifest) if row is not None else None
    if manifest is None or not manifest.rightsize:
        return None
    return workload(spec, manifest.model)


class StoredPhases:
    """The phases of workloads; it has what `sizing.PhaseBook` asks for."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._models: dict[str, tuple[int, PhaseModel | None]] = {}
        """With the epoch under which each was read."""
        self._fitting = threading.Lock()

    def model(self, workload: str) -> PhaseModel | None:
        """The phases of a workload; None while they are not known."""
        epoch = self._knowledge.epoch
        known = self._models.get(workload)
        if known is None or known[0] != epoch:
            bundle = self._knowledge.get(f"phases/{workload}/model")
            known = self._models[workload] = epoch, _model(bundle) if bundle else None
        return known[1]

    def learn(self, workload: str, job: str, samples: Sequence[Sample]) -> None:
        """Keep a run with its workload, and learn the phases anew on a thread."""
        latest = list(dict.fromkeys(samples))[-_MOST_SAMPLES:]
        run = "".join(f"{job},{at},{cores},{mib}\n" for at, cores, mib in latest)
        threading.Thread(
            target=self._learn, args=(workload, run), name="presage-phases", daemon=True
        ).start()

    def _learn(self, workload: str, run: str) -> None:
        kept, packed = f"phases/{workload}/runs", zlib.compress(run.encode())
        try:
            self._knowledge.write(Entry(kept, packed, _MOST_RUNS))
            with self._fitting:
                latest = self._knowledge.tail(kept, _MOST_RUNS)
                if latest[-1] == packed:  # else a later run waits for its turn
                    self._fit(workload, [zlib.decompress(one) for one in latest])
        except (PresageError, OSError, subprocess.TimeoutExpired) as error:
            log.warning("phases of workload %s were not learned: %s", workload, error)

    def _fit(self, workload: str, runs: Sequence[bytes]) -> None:
        last = {run.partition(b",")[0]: run for run in runs}  # of a job, all its attempts
        body = b"".join(last.values())
        if body.count(b"\n") >= _LEAST_SAMPLES:
            bundle = _fitted(body)
            self._knowledge.write(Entry(f"phases/{workload}/model", bundle))
            self._models[workload] = self._knowledge.epoch, _model(bundle)


def _fitted(runs: bytes) -> bytes:
    """The bundle of a model of these runs, fitted in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="presage-phases-") as place:
        table, bundle = Path(place, "runs.csv"), Path(place, "phases.npz")
        table.write_bytes(b"pod,time,cpu_cores,rss_mib\n" + runs)
        command = [sys.executable, "-m", "presage", "phases", "fit", str(table)]
        command += ["--out", str(bundle), "--every", "1s"]
        done = subprocess.run(command, capture_output=True, timeout=_FIT_S, check=False)
        if done.returncode:
            raise UserError(done.stderr.decode(errors="replace").strip()[-200:])
        return bundle.read_bytes()


def _model(bundle: bytes) -> PhaseModel | None:
    try:
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            file.write(bundle)
            file.flush()
            return PhaseModel.load(file.name)
    except PresageError as error:
        log.warning("%s", error)
        return None
