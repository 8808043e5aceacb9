"""What is foreseen of a job when it is submitted: journaled with it, shown to its owner.

From the model that the manifest names: its graph gives memory, utilization and step time on the
GPU it may get, corrected by what own runs taught; steps × step time is the run time. Without a
model, or for what it does not tell: own runs of the same workload. Models are data here (the zoo,
or model.onnx and config.json of the uploaded folder); the server never runs anybody's code to look
at a model.
"""

from __future__ import annotations

import hashlib
import logging
import re
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from presage.control.admission import PodNeeds
from presage.control.advisors.starts import Declared
from presage.core.ports import Predictor
from presage.foresee.adapter import (
    EnforcedSlowdowns,
    EstimatePredictor,
    FittedSlowdowns,
    Slowdowns,
    TimeSharing,
)
from presage.foresee.champions import QUANTITIES, Champions
from presage.foresee.gpus import find
from presage.foresee.own import SIZES, OwnRun, OwnRuns
from presage.foresee.scaling import foreseen_on, own_scaling
from presage.manifest import ModelReference, Needs
from presage.model.cluster import UNLIMITED, WHOLE_GPU, Node
from presage.model.errors import PresageError, UserError
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec
from presage.model.links import said_link_share
from presage.model.setup import Setup
from presage.model.workload import same_needs
from presage.provision.tasks import TaskSizer

__all__ = ["RUNTIME", "Alone", "NeedsEstimator", "predictor", "workload"]

log = logging.getLogger("presage.estimates")

CPU = "cpu"
CORE = "core"
"""The type of a device that is a core of the machine: declared, and used like a GPU."""
HOST = "host"
"""What own runs on a GPU teach of the memory beside it."""
_UNNAMED = "gpu"
_REFERENCE_GPU = "a100-40g"
"""What an estimate is for when no GPU of the cluster is in the catalogue."""
_MOST_MODEL_BYTES = 64 << 20
_MOST_FOLDER_BYTES = 4 << 30
_READ_S = 60.0
"""How long it may take to read a model."""
_AFTER_OOM = 1.5
"""A workload that ran out of memory is foreseen to need this much more than it had."""
RUNTIME = "runtime"
"""Version 0 of it is the history of the cluster, or steps × step time."""
_VERSION = re.compile(rf"\b{RUNTIME} (\d+)")
_DATA = (".onnx", ".json")
_NAMES = ("zoo:", "hf:")


@dataclass(frozen=True, slots=True)
class Alone:
    """What the estimators say of one worker that has its device to itself."""

    device: str
    sizes: Mapping[str, float] = field(default_factory=dict)
    memory_mib: Estimate | None = None
    utilization: Estimate | None = None
    step_s: Estimate | None = None
    elsewhere: bool = False
    """Whether this is of another device: something to learn factors on, and no estimate."""


def workload(spec: JobSpec, model: ModelReference | None) -> str:
    """The name under which own runs of a job are kept: its model with all that the manifest says
    of it but how long it is trained, else its command."""
    return same_needs(spec, model.described() if model else None)


def predictor(nodes: Sequence[Node], shares: bool) -> Predictor:
    """What a live policy knows: what was foreseen at submission, how jobs scale and, where they
    share devices, what they do to each other there. What own runs add to it, an engine takes from
    its state."""
    kinds = {device.type for node in nodes for device in node.devices}
    gpu = next(filter(None, map(_in_catalogue, sorted(kinds))), None)
    slowdowns: Slowdowns = TimeSharing()
    if shares and CORE not in kinds:
        from presage.foresee import estimators

        version = estimators.version("interference")
        known = find(gpu or _REFERENCE_GPU)
        slowdowns = FittedSlowdowns(estimators.interference(), known, version)
    foreseen = foreseen_on(find(gpu)) if gpu is not None else None
    held = EnforcedSlowdowns(slowdowns)
    return EstimatePredictor(held, Declared(), own_scaling(), foreseen)


class NeedsEstimator:
    """Foresees jobs. Any thread may ask; the first question about a model takes the longest."""

    def __init__(
        self,
        champions: Champions,
        nodes: Callable[[], Sequence[Node]],
        folder: Callable[[str], Path],
        runtime: Callable[[JobSpec], Estimate | None] = lambda spec: None,
    ) -> None:
        self._champions, self._nodes, self._folder = champions, nodes, folder
        self._runtime = runtime
        self._known: tuple[int, dict[str, int], dict[str, OwnRuns]] | None = None
        """The champions, and the epoch under which they were read."""
        self._sizer: tuple[int, TaskSizer] | None = None
        """What own runs held, and the epoch under which that was read."""
        self._sizing = Lock()

    def refresh(self) -> tuple[int, dict[str, int], dict[str, OwnRuns]]:
        """Take the champions of now."""
        epoch = self._champions.epoch
        versions = {name: self._champions.standing(name).champion for name in QUANTITIES}
        models = {name: self._champions.model(name, versions[name]) for name in QUANTITIES}
        self._known = epoch, versions, models
        return self._known

    def _answering(self) -> tuple[dict[str, int], dict[str, OwnRuns]]:
        """Versions and models of the champions; another server may have chosen them."""
        known = self._known
        if known is None or known[0] != self._champions.epoch:
            known = self.refresh()
        return known[1:]

    @property
    def version(self) -> str:
        """Of what answers, for the journal."""
        answering = sorted(self._answering()[0].items())
        return ", ".join(
            f"{name} {number}" for name, number in answering if number or name != RUNTIME
        )

    def of(
        self, spec: JobSpec, model: ModelReference | None = None, folder: str | None = None
    ) -> Estimates | None:
        """What is foreseen of a job; None when nothing is."""
        alone = self.alone(spec, model, folder)
        memory, step, busy = self._learned(spec, model, alone)
        runtime = None
        steps = model.steps if model else None
        if step is not None and steps:
            runtime = _times(step, steps, "s", f"{steps:,} steps × {step.source}")
        runtime = runtime or self._runtime(spec)
        if runtime is not None:
            runtime = self._by_own_runs(spec, model, alone, runtime)
        share = said_link_share(spec)
        link = Estimate.exact(share, "share", "manifest") if share is not None else None
        if not (memory or busy or step or runtime or link):
            return None
        return Estimates(self.version, runtime, memory, busy, step, link)

    def _by_own_runs(
        self, spec: JobSpec, model: ModelReference | None, alone: Alone, said: Estimate
    ) -> Estimate:
        """A run time as own runs correct it, where a version that learned them answers."""
        versions, models = self._answering()
        if not versions[RUNTIME]:
            return said
        name, sizes = workload(spec, model), alone.sizes
        learned = models[RUNTIME].predict(name, alone.device, said.p50, sizes)
        if learned is None or "own" not in learned.source:
            return said
        return replace(learned, unit="s", source=f"{learned.source} × {said.source}")

    def runtime_alone(
        self, spec: JobSpec, model: ModelReference | None, alone: Alone, said: Estimates
    ) -> float | None:
        """What was foreseen of a run time before own runs corrected it: the version that did so is
        kept, so it can be taken back."""
        if said.runtime_s is None or said.runtime_s.p50 <= 0:
            return None
        used = _VERSION.search(said.version)
        if used is None or not said.runtime_s.source.startswith("own"):
            return said.runtime_s.p50
        corrected = self._champions.model(RUNTIME, int(used[1]))
        factor = corrected.predict(workload(spec, model), alone.device, 1.0, alone.sizes)
        return said.runtime_s.p50 / factor.p50 if factor is not None else None

    def needs(self, spec: JobSpec, model: ModelReference | None, folder: str | None) -> Needs:
        """What `auto` in a manifest stands for."""
        alone = self.alone(spec, model, folder)
        memory, _, busy = self._learned(spec, model, alone)
        on_gpu = alone.device not in (CPU, CORE)
        host = None if on_gpu else memory
        if on_gpu:
            host = self._answering()[1]["memory"].predict(workload(spec, model), HOST)
        rooms = [
            device.memory_mib
            for node in self._nodes()
            for device in node.devices
            if 0 < device.memory_mib < UNLIMITED and _may_have(spec, device.type)
        ]
        return Needs(
            memory_mib=host.p90 if host else None,
            sized_mib=self._sized(spec, model, HOST if on_gpu else alone.device),
            gpu_memory_mib=memory.p90 if on_gpu and memory else None,
            utilization=busy.p50 if busy else None,
            gpu_room_mib=float(min(rooms)) if rooms else None,
        )

    def remember(self, run: OwnRun) -> None:
        """A run was kept that tells how much memory its workload held."""
        with self._sizing:
            if self._sizer is not None:
                _teach(self._sizer[1], run)

    def _sized(self, spec: JobSpec, model: ModelReference | None, device: str) -> float | None:
        """What the history of a workload that was run before says that it should get; more than
        that where it ran out of memory since with more than it ever held."""
        name = workload(spec, model)
        with self._sizing:
            if self._sizer is None or self._sizer[0] != self._champions.epoch:
                epoch, sizer = self._champions.epoch, TaskSizer()
                for run in self._champions.runs("memory"):
                    _teach(sizer, run)
                self._sizer = epoch, sizer
            sizer = self._sizer[1]
            size = sizer.size(f"{name} {device}")
            if size is None:
                return None
            short = self._champions.not_enough(name)
            if short >= size.amount_mib:
                return sizer.after_failure(f"{name} {device}", short)
            return size.amount_mib

    def pod_needs(self, spec: JobSpec, model: ModelReference | None) -> PodNeeds:
        """The same of a pod that is just being made; one that names a model and no GPU is looked
        at as if it had one, where there are any."""
        role = spec.roles[0]
        devices = [device for node in self._nodes() for device in node.devices]
        if model is not None and not role.resources.gpu_milli and devices:
            resources = replace(role.resources, gpu_milli=WHOLE_GPU)
            spec = replace(spec, roles=(replace(role, resources=resources), *spec.roles[1:]))
        alone = self.alone(spec, model, None)
        memory, _, _ = self._learned(spec, model, alone)
        on_gpu = alone.device not in (CPU, CORE)
        name = workload(spec, model)
        host = self._answering()[1]["memory"].predict(name, HOST) if on_gpu else memory
        own = host is not None and "own" in host.source
        ran_out = _AFTER_OOM * self._champions.not_enough(name)
        rooms = [d.memory_mib for d in devices if d.memory_mib < UNLIMITED]
        return PodNeeds(
            memory_mib=host.p90 if host else None,
            memory_source=host.source if host else "it ran out of memory before",
            own_runs=own,
            least_mib=max(host.p90 if host and own else 0.0, 0.0 if on_gpu else ran_out),
            gpu_memory_mib=memory.p90 if on_gpu and memory else None,
            gpu_room_mib=float(max(rooms)) if rooms else None,
            gpu_source=memory.source if on_gpu and memory else "",
        )

    def alone(self, spec: JobSpec, model: ModelReference | None, folder: str | None) -> Alone:
        """What the estimators say, without own runs."""
        device = self._device(spec)
        if model is None:
            return Alone(device)
        try:
            return _alone(model, device, _gpus(spec), self._model_file(model, folder))
        except PresageError as error:
            log.info("model %s of %s tells nothing: %s", model.ref, spec.id, error)
            return Alone(device)

    def _learned(
        self, spec: JobSpec, model: ModelReference | None, alone: Alone
    ) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
        """Memory in MiB, the step time in seconds and utilization, corrected by own runs."""
        name = workload(spec, model)
        versions, models = self._answering()
        estimates: list[Estimate | None] = []
        for quantity, said, scale in (
            ("memory", alone.memory_mib, 1.0),
            ("step_time", alone.step_s, 1e3),
            ("utilization", alone.utilization, 1.0),
        ):
            foreseen = said.p50 * scale if said else None
            learned = models[quantity].predict(name, alone.device, foreseen, alone.sizes)
            if not versions[quantity] or learned is None or "own" not in learned.source:
                estimates.append(None if alone.elsewhere else said)
            else:
                estimates.append(
                    _times(learned, 1 / scale, said.unit if said else "", learned.source)
                )
        memory, step, busy = estimates
        least = _AFTER_OOM * self._champions.not_enough(name) if memory is not None else 0.0
        if memory is not None and memory.p90 < least:
            p10, p50, p90 = (max(value, least) for value in (memory.p10, memory.p50, memory.p90))
            memory = Estimate(p10, p50, p90, memory.unit, f"{memory.source}; it ran out before")
        if busy is not None:
            p10, p50, p90 = (min(1.0, value) for value in (busy.p10, busy.p50, busy.p90))
            busy = Estimate(p10, p50, p90, busy.unit, busy.source)
        return memory, replace(step, unit="s") if step else None, busy

    def _device(self, spec: JobSpec) -> str:
        role = spec.roles[0]
        if not (role.resources.gpu_milli or role.resources.gpu_memory_mib):
            return CPU
        here = [device.type for node in self._nodes() for device in node.devices]
        named = [name for name in (*role.gpu_types, *dict.fromkeys(here)) if name]
        known = (_in_catalogue(name) for name in named)
        return next(filter(None, known), named[0] if named else _UNNAMED)

    def _model_file(self, model: ModelReference, folder: str | None) -> Path | None:
        """The model file of an uploaded folder, by itself in a cache; None for what is known by
        its name."""
        if model.ref.startswith(_NAMES):
            return None
        if not model.ref.lower().endswith(_DATA) or folder is None:
            raise UserError(
                "the server reads zoo:NAME, hf:NAME, and .onnx and .json files of the folder"
            )
        kept = self._folder(folder).with_suffix("").with_suffix(".models")
        name = hashlib.sha256(model.ref.encode()).hexdigest()[:16] + Path(model.ref).suffix
        if not (kept / name).is_file():
            _extract(self._folder(folder), model.ref, kept / name)
        return kept / name


def _teach(sizer: TaskSizer, run: OwnRun) -> None:
    if run.actual > 0:
        sizer.learn(f"{run.signature} {run.device}", run.actual)


@lru_cache(maxsize=256)
def _in_catalogue(name: str) -> str | None:
    try:
        return find(name).name
    except PresageError:
        return None


def _may_have(spec: JobSpec, kind: str) -> bool:
    types = spec.roles[0].gpu_types
    return not types or kind in types


def _times(estimate: Estimate, factor: float, unit: str, source: str) -> Estimate:
    numbers = (estimate.p10 * factor, estimate.p50 * factor, estimate.p90 * factor)
    return Estimate(*numbers, unit or estimate.unit, source)


def _extract(archive: Path, member: str, to: Path) -> None:
    """One file of an archive, whole or not at all."""
    wanted = member.removeprefix("./")
    try:
        with tarfile.open(archive, "r:gz") as tar:
            info = _member(tar, wanted)
            source = tar.extractfile(info) if info is not None else None
            if info is None or source is None:
                raise UserError(f"the folder has no file {member}")
            if info.size > _MOST_MODEL_BYTES:
                raise UserError(f"{member} is larger than {_MOST_MODEL_BYTES >> 20} MiB")
            to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=to.parent, delete=False) as draft:
                draft.write(source.read(_MOST_MODEL_BYTES))
            Path(draft.name).replace(to)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"the folder cannot be read: {error}") from None


def _member(tar: tarfile.TarFile, wanted: str) -> tarfile.TarInfo | None:
    """A file of an archive, looked for no further than a folder may be large."""
    size = 0
    for info in tar:
        size += info.size
        if size > _MOST_FOLDER_BYTES:
            raise UserError(f"the folder is larger than {_MOST_FOLDER_BYTES >> 30} GiB")
        if info.isfile() and info.name.removeprefix("./") == wanted:
            return info
    return None


def _gpus(spec: JobSpec) -> int:
    """How many GPUs of a job work together, when it has the fewest workers it may have."""
    role = spec.roles[0]
    return max(1, role.min * -(-role.resources.gpu_milli // 1000))


@lru_cache(maxsize=512)
def _alone(model: ModelReference, device: str, gpus: int, file: Path | None) -> Alone:
    # Imported here: most jobs name no model, and a server without such jobs starts sooner.
    from presage.foresee.graph.load import find_data_model
    from presage.foresee.predict import predict_model

    try:
        gpu = find(device)
    except PresageError:  # a CPU, or a GPU that the catalogue does not have
        gpu = find(_REFERENCE_GPU)
    elsewhere = device in (CPU, CORE)
    setup = _setup(model, gpus)
    named = find_data_model(str(file or model.ref), timeout_s=_READ_S)
    answer = predict_model(named, model.batch, [gpu], setup)
    sizes = {
        "step_gflop": 3 * 2 * answer.macs * model.batch / 1e9,
        "params_m": answer.params / 1e6,
        "activations_m": answer.activations * model.batch / 1e6,
        "batch": float(model.batch),
        "gpus": float(setup.gpus),
    }
    assert tuple(sizes) == SIZES
    on_gpu = answer.gpus[gpu.name]

    def estimate(said: Any, scale: float, unit: str, name: str) -> Estimate:
        return Estimate(said.p10 * scale, said.p50 * scale, said.p90 * scale, unit, name)

    return Alone(
        device,
        sizes,
        estimate(on_gpu.memory_mib, 1.0, "MiB", f"memory on {gpu.name}"),
        None
        if elsewhere
        else estimate(on_gpu.gpu_util_pct, 0.01, "share", f"utilization of {gpu.name}"),
        estimate(on_gpu.step_ms, 1e-3, "s", f"step time on {gpu.name}"),
        elsewhere=elsewhere,
    )


def _setup(model: ModelReference, gpus: int) -> Setup:
    """How it is run on the GPUs of the job: in replicas, unless it says otherwise."""
    setup = model.setup(gpus)
    if gpus > 1 and model.parallel is None:
        setup = replace(setup, parallel=replace(setup.parallel, sharding="ddp"))
    return setup
