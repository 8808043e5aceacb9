"""GPU utilization of real jobs, from their networks, without a loader: each model left out.

Real jobs of three labs: Lambda's (21 GPUs, 1 to 8 of them), Lucid's and MISO's. A model is left
out in all labs at once, with its kin (any ResNet is one model). Errors are RMSLE of log(1 +
percent) over rows, over rows of a lab, and as the mean over models, beside what a constant reaches
that is fitted on the same rows. Then what is shipped, which is fitted on MISO's rows alone. The
constants that the fits start from were chosen once, after the step times of small models in
published tables were seen. Needs the shared data and scikit-learn.

    python -m benchmarks.foresee_published_utilization [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._data import data_dir
from benchmarks._tables import print_table
from presage.foresee._jobsteps import JobUtilization
from presage.foresee._realjobs import RealJobs, of_model, read_lucid_jobs, read_miso_jobs
from presage.foresee._workloads import InputPipeline, TrainingProfile
from presage.foresee.estimators import job_utilization
from presage.foresee.gpus import Gpu, find
from presage.learn.evaluate import coverage, rmsle1p
from presage.model.errors import ConfigError

Floats = npt.NDArray[np.float64]
TARGET = 0.35


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    jobs = read_all()
    rows = [*model_left_out(jobs), *lab_left_out(jobs), *by_shipped(jobs)]
    if options.json:
        print(json.dumps(rows, allow_nan=False))
    else:
        print_table(rows)
    return 0


def read_all() -> RealJobs:
    """Jobs of the three labs."""
    parts = [read_lambda_jobs(), read_lucid_jobs(data_dir()), read_miso_jobs(data_dir())]
    return RealJobs.joined(parts)


def model_left_out(jobs: RealJobs) -> list[dict[str, Any]]:
    """Fitted on all models but one, asked for that one."""
    interval, constant = np.empty((len(jobs.util_pct), 3)), np.empty(len(jobs.util_pct))
    for name in np.unique(jobs.models):
        test = jobs.models == name
        fitted = JobUtilization().fit(jobs.X[~test], jobs.util_pct[~test], jobs.models[~test])
        interval[test] = fitted.predict_interval(jobs.X[test])
        constant[test] = _constant(jobs.util_pct[~test])
        print(f"without {name}", file=sys.stderr)
    return _rows("model left out", jobs, interval, constant)


def lab_left_out(jobs: RealJobs) -> list[dict[str, Any]]:
    """Fitted on two labs, asked for the models of the third."""
    interval, constant = np.empty((len(jobs.util_pct), 3)), np.empty(len(jobs.util_pct))
    for lab in np.unique(jobs.labs):
        test = jobs.labs == lab
        fitted = JobUtilization().fit(jobs.X[~test], jobs.util_pct[~test], jobs.models[~test])
        interval[test] = fitted.predict_interval(jobs.X[test])
        constant[test] = _constant(jobs.util_pct[~test])
    return _rows("lab left out", jobs, interval, constant)


def by_shipped(jobs: RealJobs) -> list[dict[str, Any]]:
    """What is shipped, on labs that it was not fitted on."""
    new = jobs.labs != "MISO"
    new_jobs = RealJobs(jobs.X[new], jobs.util_pct[new], jobs.models[new], jobs.labs[new])
    interval = job_utilization().predict_interval(new_jobs.X)
    constant = np.full(int(new.sum()), _constant(jobs.util_pct[~new]))
    return _rows("as shipped", new_jobs, interval, constant)


def _constant(util_pct: Floats) -> float:
    return float(np.expm1(np.mean(np.log1p(util_pct))))


def _rows(what: str, jobs: RealJobs, interval: Floats, constant: Floats) -> list[dict[str, Any]]:
    parts = {"all": np.ones(len(constant), np.bool_)}
    parts |= {str(lab): jobs.labs == lab for lab in np.unique(jobs.labs)}
    rows = []
    for name, part in parts.items():
        truth, models = jobs.util_pct[part], jobs.models[part]
        by_model = [
            rmsle1p(truth[models == one], interval[part, 1][models == one])
            for one in np.unique(models)
        ]
        held = [
            coverage(truth[models == one], interval[part][models == one])
            for one in np.unique(models)
        ]
        rows.append(
            {
                "fitted": what,
                "asked of": name,
                "rows": int(part.sum()),
                "models": len(by_model),
                "target": TARGET if name == "all" and what == "model left out" else None,
                "RMSLE": round(rmsle1p(truth, interval[part, 1]), 3),
                "mean over models": round(float(np.mean(by_model)), 3),
                "constant": round(rmsle1p(truth, constant[part]), 3),
                "80 % holds": round(coverage(truth, interval[part]), 3),
                "mean of models": round(float(np.mean(held)), 3),
                "width (points)": round(float(np.mean(interval[part, 2] - interval[part, 0])), 1),
            }
        )
    return rows


# -- Lambda's jobs --------------------------------------------------------------------------------

_V, _I = InputPipeline.VECTORS, InputPipeline.IMAGES
# Per sample: GMACs, parameters and activations in millions, layers by class, elements of the
# input, where they come from, steps of fused recurrent layers, and the usual batch where none is
# told.
# From the papers and NVIDIA's recipes, which Lambda ran: SSD with a ResNet-50 trunk on 300 × 300
# pixels; Mask R-CNN on 800 × 1333 with many small operators around proposals; GNMT with fused
# LSTMs over 25 words; Tacotron 2, whose decoder is a loop over 600 frames; WaveGlow with 12 flows.
_FACTS = {
    "ssd300-resnet50": (10.0, 15.0, 25.0, (62, 0, 50, 75), 270_000, _I, 0, 64),
    "maskrcnn-r50-fpn": (250.0, 44.0, 250.0, (80, 8, 70, 900), 3_200_000, _I, 0, 2),
    "gnmt": (2.6, 160.0, 2.0, (0, 30, 20, 60), 50, _V, 250, 128),
    "tacotron2": (11.0, 28.0, 10.0, (10, 4800, 3600, 9600), 60_000, _V, 0, 48),
    "waveglow": (100.0, 268.0, 150.0, (220, 0, 200, 400), 10_000, _V, 0, 8),
}
_USUAL = {"resnet50": 256, "bert-base-squad": 24, "bert-large-squad": 8, "ncf": 1_000_000}

# Cards that the catalogue lacks: bandwidth, FP32, FP16 and TF32 from the makers' data sheets.
_CARDS: dict[str, tuple[float, float, float | None, float | None]] = {
    "rtx2070-maxq": (384, 5.5, 22, None),
    "rtx2080-maxq": (384, 6.5, 26, None),
    "rtx2080super-maxq": (352, 6.0, 48, None),
    "quadrortx8000": (672, 16.3, 130.5, None),
    "quadrortx6000": (672, 16.3, 130.5, None),
    "quadrortx5000": (448, 11.2, 89.2, None),
    "titanrtx": (672, 16.3, 130.5, None),
    "gtx1080ti": (484, 11.3, None, None),
    "rtx3070": (448, 20.3, 40.6, 20.3),
    "rtx3080-10g": (760, 29.8, 59.5, 29.8),
    "rtx3080-laptop-16g": (448, 18.9, 38.0, 18.9),
    "rtxa4500": (640, 23.7, 94.6, 47.3),
    "rtxa5000": (768, 27.8, 111.0, 55.6),
    "rtxa5500": (768, 34.1, 136.4, 68.2),
    "rtxa6000": (768, 38.7, 154.8, 77.4),
}


def read_lambda_jobs() -> RealJobs:
    """Lambda's; the mean over GPUs and time of what nvidia-smi showed."""
    table = pl.read_parquet(data_dir() / "profiles/published_utilization.parquet")
    jobs = [_job(row) for row in table.iter_rows(named=True)]
    return RealJobs.of(
        jobs, table["gpu_util_mean_pct"].to_list(), table["model"].to_list(), "Lambda"
    )


def _job(row: dict[str, Any]) -> TrainingProfile:
    half, tf32 = row["precision"] in ("amp", "fp16"), row["precision"] == "tf32"
    gpu, model, batch = _card(row["gpu"]), row["model"], row["batch_per_gpu"]
    if (facts := _FACTS.get(model)) is None:
        known = of_model(model, max(1.0, batch or _USUAL[model]), gpu, half, tf32)
        assert known is not None
        return known
    gmacs, params_m, activations_m, counts, elements, pipeline, serial, usual = facts
    return TrainingProfile.from_totals(
        max(1.0, batch or usual),
        elements,
        gmacs * 1e9,
        activations_m * 1e6,
        params_m * 1e6,
        counts,
        gpu,
        pipeline,
        half,
        tf32,
        serial,
    )


def _card(name: str) -> Gpu:
    try:
        return find(name)
    except ConfigError:
        bandwidth, fp32, fp16, tf32 = _CARDS[name]
        like = replace(find("rtx3090"), name=name, bandwidth_gbs=bandwidth, fp32_tflops=fp32)
        return replace(like, fp16_tflops=fp16, bf16_tflops=fp16, tf32_tflops=tf32)


if __name__ == "__main__":
    sys.exit(main())
