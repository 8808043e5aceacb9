"""`presage gpus`: the catalogue of GPUs as a table. Thin: the catalogue is `foresee`'s."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from presage.cli._output import print_json, say
from presage.cli._tables import Column, show_table
from presage.foresee.gpus import Gpu, catalogue, user_file

__all__ = ["gpus"]

_HEADS = ("GiB", "SMs", "GB/s", "fp32", "tf32", "fp16", "bf16")


def gpus(
    gpus: Annotated[
        Path | None, typer.Option(help="A YAML file with more GPUs, or other figures for these.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the GPUs that Presage knows: memory, bandwidth and dense peak TFLOPS."""
    known = catalogue(gpus)
    if json:
        print_json({"gpus": [asdict(gpu) for gpu in known.values()]})
        return
    heads = [Column("NAME"), Column("MADE"), *(Column(head, right=True) for head in _HEADS)]
    show_table(heads, _rows(list(known.values())))
    for path in (user_file(), gpus):
        if path is not None:
            say(f"with the entries of {path}")


def _rows(known: list[Gpu]) -> list[list[str]]:
    rows = []
    for gpu in known:
        peaks = (gpu.fp32_tflops, gpu.tf32_tflops, gpu.fp16_tflops, gpu.bf16_tflops)
        sizes = [f"{gpu.usable_mib / 1024:.1f}", str(gpu.sms), f"{gpu.bandwidth_gbs:.0f}"]
        speeds = ["" if peak is None else _short(peak) for peak in peaks]
        made = f"{gpu.architecture} {gpu.year or ''}".strip()
        rows.append([gpu.name, made, *sizes, *speeds])
    return rows


def _short(peak: float) -> str:
    return f"{peak:.0f}" if peak >= 100 else f"{peak:.3g}"
