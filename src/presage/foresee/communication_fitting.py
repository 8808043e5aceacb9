"""Learn from published trainings what data parallelism costs, and write the shipped bundle.

`python -m presage.foresee.communication_fitting DATA DATE` fits both what several GPUs lose in any
model (pairs of a training on one GPU and on eight) and the speed of language models
(`throughput_fitting`), from rows whose licence allows it, into `models/throughput.npz`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee.communication import KINDS, Exposure, RankLoad, exposed, fabric, traffic
from presage.foresee.gpus import find
from presage.foresee.throughput_fitting import Trainings, learn, published_rows
from presage.learn import Floats
from presage.learn.bundle import prefixed, save_bundle
from presage.learn.posterior import most_probable
from presage.model.errors import UserError
from presage.model.setup import Parallelism, Setup

__all__ = ["PARAMETERS_M", "EightFold", "efficiency", "fit_exposure", "pairs"]

PARAMETERS_M = {
    # millions, as the papers and repositories of these models say
    "bart-large-finetune": 406,
    "bart-large-pretrain": 406,
    "bert-base-squad": 110,
    "bert-large-pretrain": 336,
    "bert-large-squad": 335,
    "biobert-finetune": 110,
    "biobert-pretrain": 110,
    "efficientdet-d0": 3.9,
    "efficientnet-b0": 5.3,
    "efficientnet-b4": 19.3,
    "efficientnet-v1-b0": 5.3,
    "efficientnet-v1-b4": 19.3,
    "efficientnet-widese-b0": 6.7,
    "efficientnet-widese-b4": 27.4,
    "electra-base-pretrain": 110,
    "electra-base-squad": 110,
    "fastpitch": 45,
    "gnmt": 210,
    "jasper": 332,
    "maskrcnn-r50-fpn": 44.2,
    "moflow": 70,
    "ncf": 31.8,
    "nnunet-2d": 41.2,
    "nnunet-3d": 31.2,
    "quartznet": 18.9,
    "resnet50": 25.6,
    "resnext101-32x4d": 44.2,
    "se-resnext101-32x4d": 49.0,
    "se3-transformer-qm9": 2.0,
    "ssd300-resnet50": 22.9,
    "tacotron2": 28.2,
    "tft-electricity": 1.0,
    "tft-traffic": 1.0,
    "transformer-big": 210,
    "unet-medical": 31.0,
    "unet3d-medical": 16.3,
    "vnet": 45.6,
    "waveglow": 87.7,
}
"""Models of the published pairs."""

_GRADIENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 4, "amp": 2, "fp16": 2}
"""What apex and NVIDIA's examples send; with `amp` the weights of these had two bytes."""
_IMPOSSIBLE = 1.2
"""Eight GPUs do not do the work of ten; such pairs compare different things."""
_NOISE = 0.035
_EXPECTED: dict[str, tuple[float, float]] = {
    # logarithms; what NCCL's own tests reach, and frameworks from before 2024 hide
    "nvlink": (log(0.6), 0.5),
    "pcie": (log(0.45), 0.5),
    "host": (log(0.1), 0.8),
    "gradients": (log(0.5), 0.5),
    "least": (log(0.3), 0.7),
    "waiting": (log(0.03), 0.7),
    "fixed_ms": (log(2.0), 0.7),
}


@dataclass(frozen=True, slots=True)
class EightFold:
    """A training on one GPU and on eight."""

    source: str
    model: str
    gpu: str
    near: str
    """The family of the link between the eight."""
    step_ms: float
    """Of one GPU, one micro-batch."""
    sending_ms: float
    """Of the gradients if the link did what it should, for one micro-batch."""
    efficiency: float


def pairs(table: pl.DataFrame) -> list[EightFold]:
    """Rows of `published_training` with one and with eight GPUs that agree in all else."""
    same = ["source", "suite", "model", "gpu", "gpu_form", "precision", "batch_per_gpu"]
    same += ["framework", "framework_version", "layout", "input"]
    rows = table.filter(~pl.col("suspect") & pl.col("model").is_in(list(PARAMETERS_M)))
    middle = [pl.col("samples_per_s").median(), pl.col("step_ms").median()]
    one = rows.filter(pl.col("gpus") == 1).group_by(same).agg(middle)
    eight = rows.filter(pl.col("gpus") == 8).group_by(*same, "interconnect")
    both = eight.agg(*middle, pl.col("grad_accum").first()).join(
        one, on=same, nulls_equal=True, suffix="_1"
    )
    both = both.with_columns(efficiency=pl.col("samples_per_s") / 8 / pl.col("samples_per_s_1"))
    both = both.filter(pl.col("step_ms_1").is_not_null() & (pl.col("efficiency") < _IMPOSSIBLE))
    both = both.sort(*same, "interconnect")
    return [_pair(row) for row in both.iter_rows(named=True)]


def _pair(row: Mapping[str, Any]) -> EightFold:
    over = fabric(find(row["gpu"]), row["interconnect"], 8)
    setup = Setup(gpus=8, parallel=Parallelism("ddp"))
    count = PARAMETERS_M[row["model"]] * 1e6
    load = RankLoad(count, count, gradient_bytes=_GRADIENT_BYTES[row["precision"]])
    sending = 1e3 * sum(traffic(load, setup, over)["gradients"])
    accumulated = row["grad_accum"] if row["source"].startswith("nvidia") else None
    return EightFold(
        row["source"],
        row["model"],
        row["gpu"],
        over.near.family,
        row["step_ms_1"],
        sending / max(1, accumulated or 1),
        row["efficiency"],
    )


def efficiency(of: Sequence[EightFold], how: Exposure) -> Floats:
    """What eight GPUs do over eight times one, as foreseen."""
    step = np.array([pair.step_ms for pair in of])
    near = dict.fromkeys(KINDS, np.zeros(len(of)))
    near["gradients"] = np.array([pair.sending_ms for pair in of])
    reach = np.array([how.times(pair.near) for pair in of])
    none = dict.fromkeys(KINDS, np.zeros(len(of)))
    seen = exposed(near, none, step, step * 2 / 3, np.full(len(of), 8.0), how, reach)
    return np.asarray(step / (step + sum(seen.values()) + how.fixed_ms))


def fit_exposure(of: Sequence[EightFold]) -> Exposure:
    """The most probable reach of links and share that hides; large errors hardly count, as some of
    these trainings waited for their data."""
    truth = np.array([pair.efficiency for pair in of])
    _, place, count = np.unique(
        [pair.model for pair in of], return_inverse=True, return_counts=True
    )
    certain = count[place] ** -0.5 / _NOISE
    expected, surprise = (np.array(side) for side in zip(*_EXPECTED.values(), strict=True))

    def model(x: Floats) -> Exposure:
        value = dict(zip(_EXPECTED, map(float, np.exp(x)), strict=True))
        return Exposure(**value | {k: min(value[k], 1.0) for k in ("gradients", "least")})

    def residuals(x: Floats) -> Floats:
        return np.asarray((efficiency(of, model(x)) - truth) * certain)

    return model(most_probable(residuals, expected, surprise, robust=0.1))


def write_bundle(data: Path, date: str, path: Path) -> dict[str, Any]:
    """Fit what may be shipped, and write it; the card."""
    training = pl.read_parquet(data / "profiles" / "published_training.parquet")
    free = pairs(training.filter(~pl.col("source").is_in(["lambda-dlbenchmark", "u39kun-dlb"])))
    how = fit_exposure(free)
    table = pl.read_parquet(data / "profiles" / "published_llm_training.parquet")
    trainings = Trainings.of(published_rows(table.filter(pl.col("source") != "hf-blog")))
    model, errors = learn(trainings)
    names = list(_EXPECTED)
    arrays: dict[str, npt.NDArray[Any]] = {
        "exposure.names": np.array(names),
        "exposure.values": np.array([getattr(how, name) for name in names]),
        **prefixed("llm", model.to_arrays()),
    }
    card = {
        "name": "throughput",
        "version": "2",
        "date": date,
        "data": f"{len(trainings.rows)} published trainings of language models (llm-foundry, "
        f"Megatron-Bridge, bigscience, torchtune, peft, DeepSpeed); {len(free)} pairs of 1 and 8 "
        "GPUs (NVIDIA/DeepLearningExamples)",
        "licence": "Apache-2.0, BSD-3-Clause",
        "features": ["operations and bytes of a step"],
        "splits": "models, sizes, GPUs and sources left out by turns",
        "errors": errors,
    }
    save_bundle(path, arrays, card)
    return card


def _main(data: str, date: str) -> None:
    path = Path(__file__).with_name("models") / "throughput.npz"
    print(write_bundle(Path(data), date, path))


if __name__ == "__main__":
    try:
        _main(*sys.argv[1:])
    except UserError as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(wrong.exit_code)
