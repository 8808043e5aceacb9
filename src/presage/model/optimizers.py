"""What optimizers keep on the GPU beside weights and gradients: one table for every graph.

Figures follow the code of PyTorch (`torch.optim`), bitsandbytes and transformers. Nothing here
knows a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from presage.model.errors import ConfigError

__all__ = ["OPTIMIZER_TABLE", "OptimizerMemory", "optimizer_memory"]


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """Bytes of one optimizer, by the parameters it trains."""

    name: str
    values: float = 0.0
    """Values kept for a parameter, in the type of the parameter (fp32 beside a master copy)."""
    fixed_bytes: float = 0.0
    """Bytes that are kept for a parameter whatever its type: quantised state."""
    foreach_values: float = 0.0
    """Temporary values for every parameter at once: the foreach forms hold a list of them."""
    largest_values: float = 0.0
    """Temporary fp32 values for the largest parameter: forms that go one by one."""
    paged: bool = False
    """State lives in managed memory and leaves the GPU when it is needed for something else."""
    passes: int = 1
    """Passes over the parameters that a step makes."""


_BLOCK8 = 2 * (1 + 4 / 256)
"""Two moments of one byte, each block of 256 with an fp32 constant (bitsandbytes, torchao)."""

OPTIMIZER_TABLE: dict[str, OptimizerMemory] = {
    entry.name: entry
    for entry in (
        OptimizerMemory("none", passes=0),
        OptimizerMemory("sgd"),
        OptimizerMemory("momentum", values=1, passes=2),
        # foreach Adam holds the square root of the second moment of every parameter
        OptimizerMemory("adam", values=2, foreach_values=1, passes=6),
        OptimizerMemory("adamw", values=2, foreach_values=1, passes=6),
        OptimizerMemory("adam-fused", values=2, passes=1),
        OptimizerMemory("adamw-fused", values=2, passes=1),
        OptimizerMemory("adam-8bit", fixed_bytes=_BLOCK8, passes=1),
        OptimizerMemory("adamw-8bit", fixed_bytes=_BLOCK8, passes=1),
        OptimizerMemory("paged-adamw", values=2, paged=True, passes=1),
        OptimizerMemory("paged-adamw-8bit", fixed_bytes=_BLOCK8, paged=True, passes=1),
        # row and column means alone; its update is computed one parameter at a time
        OptimizerMemory("adafactor", fixed_bytes=0.01, largest_values=2, passes=4),
        OptimizerMemory("lion", values=1, largest_values=1, passes=3),
        OptimizerMemory("lion-8bit", fixed_bytes=_BLOCK8 / 2, passes=1),
        OptimizerMemory("rmsprop", values=1, foreach_values=1, passes=4),
        OptimizerMemory("adagrad", values=1, foreach_values=1, passes=3),
        # Newton-Schulz on one matrix: X, A and B in half precision
        OptimizerMemory("muon", values=1, largest_values=1.5, passes=8),
    )
}

_ALIASES = {
    "adamw8bit": "adamw-8bit",
    "adam8bit": "adam-8bit",
    "8bit-adam": "adam-8bit",
    "8bit-adamw": "adamw-8bit",
    "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
    "paged_adamw_8bit": "paged-adamw-8bit",
    "paged_adamw_32bit": "paged-adamw",
    "fused-adam": "adam-fused",
    "fused-adamw": "adamw-fused",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw-fused",
    "sgd-momentum": "momentum",
}


def optimizer_memory(name: str) -> OptimizerMemory:
    """The entry of that name or of another spelling of it."""
    key = name.strip().lower()
    entry = OPTIMIZER_TABLE.get(_ALIASES.get(key, key.replace("_", "-")))
    if entry is None:
        near = get_close_matches(key, [*OPTIMIZER_TABLE, *_ALIASES], n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(f"unknown optimizer '{name}': {hint}one of {', '.join(OPTIMIZER_TABLE)}")
    return entry
