"""How much a job talks over the links of its nodes, foreseen from its model when it is submitted.

The settings that it could have follow from its roles and from the network that the server is told
of; what is foreseen of them is what `presage predict --setting` goes by. It says nothing rather
than something that nobody measured: of trainings that are divided otherwise than in replicas, of
workers with several GPUs, of processors, of settings too far from those measured. Own runs have no
say, as they do not tell on how many nodes they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from presage.foresee.gpus import Gpu
from presage.manifest import ModelReference
from presage.model.cluster import WHOLE_GPU
from presage.model.estimate import Estimate
from presage.model.job import JobSpec, Role, workers_and_servers

if TYPE_CHECKING:
    from presage.foresee.answer import Quantiles
    from presage.foresee.bursts.settings import Setting

__all__ = ["NO_NETWORK", "READ_S", "foreseen_talk", "settings_for"]

NO_NETWORK = "none"
"""Of a server that was told of no network: nothing is foreseen."""
READ_S = 60.0
"""How long it may take to read a model."""
_WHOLE_SLOPES = ("fp32", "tf32", "amp", "amp-bf16")
"""Precisions whose slopes are told in four bytes each."""


def foreseen_talk(
    spec: JobSpec, model: ModelReference, gpu: Gpu, file: Path | None, network: str
) -> Estimate | None:
    """The share of a step for which it loads a link, 0 to 0.99, alone on it. The middle is that
    of the fewest tasks with which it talks; both ends are as far as any size that it may have."""
    if network == NO_NETWORK or not _in_replicas(spec, model):
        return None
    settings = settings_for(spec.roles, network)
    if not settings:
        return None
    from presage.foresee.bursts.shares import foreseen_share, is_measured
    from presage.foresee.bursts.use import step_model

    steps = step_model()
    if steps is None:
        return None
    one = _replica(model, gpu, file)
    shares = [foreseen_share(steps, one.step_ms, one.slopes, setting) for setting in settings]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    sizes = f"{settings[0]}" if len(settings) == 1 else f"{settings[0]} to {settings[-1]}"
    new = "" if all(is_measured(steps, setting) for setting in settings) else ", not measured"
    source = f"bytes ÷ link ÷ step in {sizes}{new}, on {gpu.name}"
    ends = min(each.p10 for each in known), max(each.p90 for each in known)
    return Estimate(ends[0], known[0].p50, ends[1], "share", source)


def settings_for(roles: Sequence[Role], network: str) -> tuple[Setting, ...]:
    """The settings of the least and the most tasks that talk: an all-reduce of one role, or
    workers with parameter servers. None of a job that has one worker, or other roles."""
    from presage.foresee.bursts.settings import Setting

    places = workers_and_servers(roles)
    if places is not None:
        workers, servers = (roles[place] for place in places)
        return tuple(
            dict.fromkeys(
                Setting(max(of_workers, 1), network, max(of_servers, 1))
                for of_workers in (workers.min, workers.max)
                for of_servers in (servers.min, servers.max)
            )
        )
    if len(roles) != 1 or roles[0].max < 2:
        return ()
    least = max(roles[0].min, 2)
    return tuple(dict.fromkeys(Setting(count, network) for count in (least, roles[0].max)))


def _in_replicas(spec: JobSpec, model: ModelReference) -> bool:
    """Whether each worker has the whole model on one GPU, and sends whole slopes."""
    places = workers_and_servers(spec.roles)
    worker = spec.roles[places[0] if places is not None else 0]
    return (
        worker.resources.gpu_milli <= WHOLE_GPU
        and model.parallel in (None, "", "none", "ddp")
        and model.precision in _WHOLE_SLOPES
        and model.offload == "none"
        and not model.inference
    )


@dataclass(frozen=True, slots=True)
class _Replica:
    """A worker by itself."""

    step_ms: Quantiles
    slopes: float
    """Bytes that it tells the others in a step."""


@lru_cache(maxsize=512)
def _replica(model: ModelReference, gpu: Gpu, file: Path | None) -> _Replica:
    from presage.foresee.graph.load import find_data_model
    from presage.foresee.predict import predict_model

    setup = model.model_copy(update={"parallel": None}).setup()
    named = find_data_model(str(file or model.ref), timeout_s=READ_S)
    answer = predict_model(named, model.batch, [gpu], setup, largest=False)
    return _Replica(answer.gpus[gpu.name].step_ms, 4.0 * named.graph(setup).trainable)
