"""The catalogue of GPUs: what each can hold and how fast it is at best.

The figures are in `gpus.yaml` beside this file, with their sources. People add their own in a file
of the same form: `$PRESAGE_GPUS`, else `~/.config/presage/gpus.yaml`. Nothing here measures or
predicts, and nothing asks a driver.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from presage.edge import read_yaml
from presage.model.errors import ConfigError

__all__ = ["Gpu", "Precision", "catalogue", "find", "user_file"]

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]

_SHIPPED = Path(__file__).with_name("gpus.yaml")
_LEAST_USABLE = 0.92
"""The share of its memory that a device leaves to programs when nobody has looked: GDDR with ECC
keeps 6 % for itself, the driver the rest."""
_MAKERS = ("nvidia", "geforce", "quadro", "tesla", "amd", "instinct")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as a program sees it. Peaks are dense: without sparsity."""

    name: str
    memory_mib: int
    """As sold."""
    usable_mib: int
    """What the driver leaves to programs; the context of a process takes its part of it."""
    sms: int
    """Streaming multiprocessors, or compute units."""
    bandwidth_gbs: float
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    architecture: str
    year: int
    aliases: tuple[str, ...] = ()
    watts: float | None = None
    """Power that the board may draw; None if nobody said."""
    fp8_tflops: float | None = None
    nvfp4_tflops: float | None = None

    def tflops(self, precision: Precision) -> float:
        """The peak at a precision; what the device does not accelerate runs at the fp32 rate, and
        eight or four bits where only sixteen are fast at the rate of bf16."""
        peaks = {
            "fp32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "fp16": self.fp16_tflops,
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops or self.bf16_tflops,
            "nvfp4": self.nvfp4_tflops or self.fp8_tflops or self.bf16_tflops,
        }
        return peaks[precision] or self.fp32_tflops


def catalogue(extra: Path | None = None) -> dict[str, Gpu]:
    """Every known device by its name, the shipped ones first; a later entry replaces the figures
    of an earlier one of the same name. `extra` is one more file of the form of `gpus.yaml`."""
    gpus = dict(_shipped())
    for path in (user_file(), extra):
        for name, gpu in _read(path).items() if path is not None else ():
            names = gpus[name].aliases if name in gpus else ()
            gpus[name] = replace(gpu, aliases=(*names, *gpu.aliases))
    return gpus


def find(name: str, extra: Path | None = None) -> Gpu:
    """The device of that name or alias; how it is spelt (`A100-SXM4-40GB`) does not matter."""
    gpus = catalogue(extra)
    known = {_key(alias): gpu for gpu in gpus.values() for alias in gpu.aliases}
    known |= {_key(gpu.name): gpu for gpu in gpus.values()}
    match = known.get(_key(name))
    if match is None:
        close = get_close_matches(_key(name), known, n=3, cutoff=0.6)
        near = list(dict.fromkeys(known[key].name for key in close))
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(
            f"unknown GPU {name!r}; {hint}`presage gpus` lists those there are, and you can add"
            f" yours to {user_file() or _home_file()}"
        )
    return match


def user_file() -> Path | None:
    """The file of additions that is read on this machine, if there is one."""
    if named := os.environ.get("PRESAGE_GPUS"):
        return Path(named)
    return _home_file() if _home_file().is_file() else None


class _Tflops(BaseModel):
    """Dense peaks by precision."""

    model_config = ConfigDict(extra="forbid")

    fp32: float = Field(gt=0, le=1e6, allow_inf_nan=False)
    tf32: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    fp16: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    bf16: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    fp8: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    nvfp4: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)


class _GpuSpec(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    memory_mib: int = Field(ge=256, le=1 << 24)
    usable_mib: int | None = Field(default=None, ge=1)
    sms: int = Field(ge=1, le=100_000)
    bandwidth_gbs: float = Field(gt=0, le=1e6, allow_inf_nan=False)
    tflops: _Tflops
    watts: float | None = Field(default=None, gt=0, le=1e5, allow_inf_nan=False)
    architecture: str = Field(default="unknown", min_length=1, max_length=40)
    year: int = Field(default=0, ge=0, le=9999)
    aliases: list[str] = Field(default_factory=list)


class _GpuFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    gpus: dict[str, _GpuSpec]


@cache
def _shipped() -> dict[str, Gpu]:
    return _read(_SHIPPED)


def _read(path: Path) -> dict[str, Gpu]:
    specs = read_yaml(path, _GpuFile, ConfigError).gpus
    owner: dict[str, str] = {}
    for name, spec in specs.items():
        if spec.usable_mib is not None and spec.usable_mib > spec.memory_mib:
            raise ConfigError(f"{path}: {name}: usable_mib is more than memory_mib")
        for word in (name, *spec.aliases):
            if not _key(word):
                raise ConfigError(f"{path}: {name}: {word!r} is no name; use letters and digits")
            if owner.setdefault(_key(word), name) != name:
                raise ConfigError(f"{path}: {word!r} names both {owner[_key(word)]} and {name}")
    return {name: _gpu(name, spec) for name, spec in specs.items()}


def _gpu(name: str, spec: _GpuSpec) -> Gpu:
    return Gpu(
        name=name,
        memory_mib=spec.memory_mib,
        usable_mib=spec.usable_mib or int(spec.memory_mib * _LEAST_USABLE),
        sms=spec.sms,
        bandwidth_gbs=spec.bandwidth_gbs,
        fp32_tflops=spec.tflops.fp32,
        tf32_tflops=spec.tflops.tf32,
        fp16_tflops=spec.tflops.fp16,
        bf16_tflops=spec.tflops.bf16,
        architecture=spec.architecture,
        year=spec.year,
        aliases=tuple(spec.aliases),
        watts=spec.watts,
        fp8_tflops=spec.tflops.fp8,
        nvfp4_tflops=spec.tflops.nvfp4,
    )


def _key(name: str) -> str:
    """Letters and digits of a name without its maker: 'NVIDIA GeForce RTX 3090' is 'rtx3090'."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in _MAKERS)


def _home_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "presage" / "gpus.yaml"
