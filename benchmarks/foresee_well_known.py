"""Well-known language models by name, beside what their authors published of their training.

Tokens a second a GPU follow from GPU hours and tokens in papers and model cards, so they include
restarts and evaluations; how the work was divided is as published where it is, else assumed, and
the table says which (checkpointing and micro-batches then such that it fits). None of these rows
was fitted on but BLOOM's (its makers' logs were).

    python -m benchmarks.foresee_well_known [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.foresee.gpus import find
from presage.foresee.graph.load import find_model
from presage.foresee.predict import predict_model
from presage.model.setup import Setup


@dataclass(frozen=True, slots=True)
class Published:
    """A training that its authors described."""

    name: str
    gpu: str
    hours: float
    """GPU hours of the whole training."""
    tokens: float
    batch: int
    options: dict[str, Any]
    source: str
    assumed: bool = False
    """Whether the division of the work is not published."""


def _zero(gpus: int, **more: Any) -> dict[str, Any]:
    said = {"gpus": gpus, "parallel": "zero1", "precision": "bf16", "optimizer": "adamw"}
    return {**said, "attention": "flash", **more}


_LLAMA = "Touvron et al. 2023, arXiv 2302.13971"
_LLAMA2 = "Touvron et al. 2023, arXiv 2307.09288"
_PYTHIA = "Biderman et al. 2023, arXiv 2304.01373"
_FSDP = {"parallel": "fsdp", "checkpoint": "full"}
PUBLISHED = (
    Published(
        "llama-7b", "a100-80g", 82_432, 1e12, 4, _zero(512, seq=2048, **_FSDP), _LLAMA, True
    ),
    Published(
        "llama-13b", "a100-80g", 135_168, 1e12, 4, _zero(512, seq=2048, **_FSDP), _LLAMA, True
    ),
    Published(
        "huggyllama/llama-30b",
        *("a100-80g", 530_432, 1.4e12, 2, _zero(2048, seq=2048, **_FSDP), _LLAMA, True),
    ),
    Published(
        "huggyllama/llama-65b",
        *("a100-80g", 1_022_362, 1.4e12, 2, _zero(2048, seq=2048, **_FSDP), _LLAMA, True),
    ),
    Published(
        "meta-llama/Llama-2-7b-hf",
        *("a100-80g", 184_320, 2e12, 2, _zero(512, seq=4096, **_FSDP), _LLAMA2, True),
    ),
    Published(
        "meta-llama/Llama-2-13b-hf",
        *("a100-80g", 368_640, 2e12, 2, _zero(512, seq=4096, **_FSDP), _LLAMA2, True),
    ),
    Published(
        "meta-llama/Llama-2-70b-hf",
        *("a100-80g", 1_720_320, 2e12, 1, _zero(1024, seq=4096, **_FSDP), _LLAMA2, True),
    ),
    Published(
        "meta-llama/Meta-Llama-3-8B",
        *("h100-80g", 1.3e6, 15e12, 1, _zero(1024, seq=8192, **_FSDP), "model card", True),
    ),
    Published(
        "meta-llama/Meta-Llama-3-70B",
        *("h100-80g", 6.4e6, 15e12, 1),
        _zero(2048, seq=8192, parallel="zero1,tp=8,pp=4,sp", accumulate=16),
        "model card",
        True,
    ),
    Published(
        "meta-llama/Llama-3.1-405B",
        *("h100-80g", 30.84e6, 15.6e12, 1),
        _zero(16_384, seq=8192, parallel="zero1,tp=8,pp=16,sp", accumulate=16),
        "Llama team 2024, arXiv 2407.21783",
    ),
    Published(
        "mosaicml/mpt-7b",
        *("a100-40g", 440 * 9.5 * 24, 1e12, 4),
        _zero(440, seq=2048, parallel="fsdp", checkpoint="full"),
        "MosaicML 2023, blog",
        True,
    ),
    *(
        Published(
            f"EleutherAI/pythia-{size}",
            *("a100-40g", hours, 300e9, batch),
            _zero(gpus, seq=2048, precision="fp16", checkpoint="full"),
            _PYTHIA,
        )
        for size, hours, gpus, batch in (
            *(("1.4b", 7_120, 64, 16), ("2.8b", 14_240, 64, 16)),
            *(("6.9b", 33_500, 128, 8), ("12b", 72_300, 256, 4)),
        )
    ),
    Published(
        "TinyLlama/TinyLlama-1.1B",
        *("a100-40g", 1e12 / 24_000 / 3600, 1e12, 8),
        _zero(16, seq=2048, parallel="fsdp", accumulate=4, loss="chunked"),
        "Zhang et al. 2024, arXiv 2401.02385",
    ),
    Published(
        "microsoft/phi-2",
        *("a100-80g", 96 * 14 * 24, 1.4e12, 4, _zero(96, seq=2048), "model card", True),
    ),
    Published(
        "microsoft/phi-1_5",
        *("a100-40g", 1_500, 150e9, 4, _zero(32, seq=2048, precision="fp16")),
        "Li et al. 2023, arXiv 2309.05463",
        True,
    ),
    Published(
        "bigcode/starcoder",
        *("a100-80g", 320_256, 1e12, 1),
        _zero(512, seq=8192, parallel="zero1,tp=4,pp=4", accumulate=16),
        "Li et al. 2023, arXiv 2305.06161",
    ),
    Published(
        "stabilityai/stablelm-3b-4e1t",
        *("a100-40g", 256 * 30 * 24, 4e12, 4),
        _zero(256, seq=4096, checkpoint="full"),
        "model card",
        True,
    ),
    Published(
        "bigscience/bloom",
        *("a100-80g", 1_082_990, 366e9, 2),
        _zero(384, seq=2048, parallel="zero1,tp=4,pp=12", accumulate=128, checkpoint="full"),
        "BigScience 2022, arXiv 2211.05100",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Foresee each, and print both."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows = [_row(one) for one in PUBLISHED]
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("| model | GPUs | published tokens/s a GPU | foreseen (10–90 %) | off | GiB | from |")
    print("|---|---|---:|---:|---:|---:|---|")
    for row in rows:
        low, middle, high = row["foreseen"]
        mark = " (division assumed)" if row["assumed"] else ""
        print(
            f"| {row['name']} | {row['gpus']:,} {row['gpu']} | {row['published']:,.0f} | "
            f"{middle:,.0f} ({low:,.0f}–{high:,.0f}) | {row['off_pct']:+.0f} % | "
            f"{row['memory_gib']:.0f} | {row['source']}{mark} |"
        )
    off = np.array([row["off_pct"] for row in rows])
    inside = np.mean([row["inside"] for row in rows])
    print(
        f"\n{len(rows)} models: typically {np.median(np.abs(off)):.0f} % off, within 25 % "
        f"{np.mean(np.abs(off) <= 25):.0%}; the 80 % interval holds {inside:.0%}; said to fit: "
        f"{sum(row['fits'] for row in rows)}"
    )
    return 0


def _row(one: Published) -> dict[str, Any]:
    setup = Setup.make(**one.options)
    answer = predict_model(find_model(f"hf:{one.name}"), one.batch, [find(one.gpu)], setup)
    on = answer.gpus[find(one.gpu).name]
    assert on.tokens_per_s is not None
    each = [
        q / setup.gpus for q in (on.tokens_per_s.p10, on.tokens_per_s.p50, on.tokens_per_s.p90)
    ]
    truth = one.tokens / one.hours / 3600
    return {
        **{"name": one.name, "gpu": one.gpu, "gpus": setup.gpus, "published": truth},
        **{"foreseen": each, "off_pct": 100 * (each[1] / truth - 1)},
        **{"inside": each[0] <= truth <= each[2], "memory_gib": on.memory_mib.p50 / 1024},
        **{"fits": on.chance_fits > 0.5, "source": one.source, "assumed": one.assumed},
    }


if __name__ == "__main__":
    sys.exit(main())
