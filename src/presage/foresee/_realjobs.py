"""Real jobs whose utilization was measured, as the operators of their networks say.

MISO's and Lucid's tables name networks; each becomes the graph of the zoo where there is one, and
what its paper says where there is none. Only what is known before a run is read: measured columns
are no features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presage.foresee._workloads import (
    _FACTS,
    Features,
    TrainingProfile,
    _from_facts,
    profile_of,
    usable_rows,
)
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import load_graph
from presage.foresee.graph.opgraph import OpGraph
from presage.learn import Floats

__all__ = ["RealJobs", "of_model", "read_lucid_jobs", "read_miso_jobs"]


@dataclass(frozen=True, slots=True, eq=False)
class RealJobs:
    """Jobs of one or several labs."""

    X: Features
    util_pct: Floats
    models: npt.NDArray[np.str_]
    """Kin have one name, whichever lab measured them."""
    labs: npt.NDArray[np.str_]

    @classmethod
    def of(
        cls,
        jobs: Sequence[TrainingProfile],
        util_pct: Sequence[float],
        names: Sequence[str],
        lab: str,
    ) -> RealJobs:
        """Jobs of a lab."""
        kin = np.array([_KIN.get(name.lower(), name.lower()) for name in names])
        return cls(Features.of(jobs), np.array(util_pct), kin, np.full(len(kin), lab))

    @classmethod
    def joined(cls, parts: Sequence[RealJobs]) -> RealJobs:
        """The rows of several, one after the other."""
        return cls(
            Features.joined([part.X for part in parts]),
            np.concatenate([part.util_pct for part in parts]),
            np.concatenate([part.models for part in parts]),
            np.concatenate([part.labs for part in parts]),
        )


_KIN = {
    **dict.fromkeys(("bert-base-squad", "bert-large-squad"), "bert"),
    **dict.fromkeys(("resnet18", "resnet50"), "resnet"),
    "mobilenetv3": "mobilenet",
    "neumf": "ncf",
}
_GRAPHS = {
    **{"BERT": "bert-base-squad", "DCGAN": "dcgan", "MobileNetV3": "mobilenetv3-small"},
    **{"NeuMF": "neumf", "PPO": "ppo", "TD3": "td3", "ResNet18": "resnet18-cifar10"},
    **{"ResNet50": "resnet50", "Transformer": "transformer-multi30k"},
    **{"bert": "bert-base", "cyclegan": "cyclegan", "deepspeech2": "deepspeech2"},
    **{"gnn": "gin-molpcba", "resnet": "resnet50-cifar10"},
    **{"bert-base-squad": "bert-base-squad", "bert-large-squad": "bert-large"},
    **{"resnet50": "resnet50", "ncf": "neumf"},
}
"""Names of networks in the zoo by those of the tables."""


@cache
def _graph(name: str) -> OpGraph:
    return load_graph(f"zoo:{name}")


def of_model(
    model: str, batch: float, gpu: Gpu, half_precision: bool = False, tf32: bool = True
) -> TrainingProfile | None:
    """The job of a model that the zoo or a paper tells of, else nothing. TF32 is what frameworks
    did by default when the tables were made."""
    if model in _GRAPHS:
        job = profile_of(_graph(_GRAPHS[model]), batch, gpu)
    elif model in _FACTS:
        job = _from_facts(model, batch, half_precision, gpu)
    else:
        return None
    faster = tf32 and gpu.tf32_tflops is not None
    return replace(job, half_precision=half_precision, tf32=faster)


def read_miso_jobs(data_dir: Path) -> RealJobs:
    """MISO's, on an A100."""
    import polars as pl  # when it is needed: it takes longer than an answer

    table = usable_rows(pl.read_parquet(data_dir / "profiles/miso_util_a100.parquet"))
    gpu = find("a100-40g")
    jobs = [_known(row["model"], row["batch"], gpu) for row in table.iter_rows(named=True)]
    return RealJobs.of(jobs, table["util_sm_pct"].to_list(), table["model"].to_list(), "MISO")


def read_lucid_jobs(data_dir: Path) -> RealJobs:
    """Lucid's, on an RTX 3090."""
    import polars as pl  # when it is needed: it takes longer than an answer

    table = pl.read_parquet(data_dir / "profiles/lucid_single_rtx3090.parquet")
    gpu = find("rtx3090")
    jobs = [
        _known(row["model"], row["batchsize"], gpu, bool(row["amp"]))
        for row in table.iter_rows(named=True)
    ]
    return RealJobs.of(jobs, table["gpu_util"].to_list(), table["model"].to_list(), "Lucid")


def _known(model: str, batch: float, gpu: Gpu, half_precision: bool = False) -> TrainingProfile:
    job = of_model(model, batch, gpu, half_precision)
    assert job is not None, f"nothing is known of {model}"
    return job
