"""What a training is to reach: how much it has to see, by when, for how much.

Amounts as people write them (`2B` tokens) become one frozen value here. Nothing here predicts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from presage.model.errors import UserError

__all__ = ["TrainingGoal", "amount_of", "usual_global_batch"]

_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(?:e(\d{1,2}))?\s*([kmbt]?)", re.ASCII)
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST = 10**18
_LEAST_STEPS = 1000
_MOST_TOKENS = 1 << 19
_MOST_SAMPLES = 1024


@dataclass(frozen=True, slots=True)
class TrainingGoal:
    """What is to be reached."""

    samples: int
    """To be seen in all, repeats counted."""
    global_batch: int
    """Samples before each step of the optimizer, of all GPUs together."""
    seq: int | None = None
    """Tokens of a sample; None for a model that does not read tokens."""
    deadline_s: float | None = None
    budget_usd: float | None = None

    @property
    def steps(self) -> int:
        """Steps of the optimizer."""
        return -(-self.samples // self.global_batch)

    @property
    def unit(self) -> str:
        """What is counted: `tokens` or `samples`."""
        return "samples" if self.seq is None else "tokens"

    @property
    def amount(self) -> int:
        """How many of them."""
        return self.samples * (self.seq or 1)


def amount_of(value: str | float, what: str) -> int:
    """A whole number above zero: `2B`, `300M`, `1.5k`, `1e9`, `50_000`; `what` is for messages."""
    text = str(value).strip().lower().replace("_", "").replace(",", "")
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise UserError(f"{what}: write an amount such as 2B, 300M, 50k or 12000, not {value!r}")
    exact = float(match[1]) * 10.0 ** int(match[2] or 0) * _SIZES[match[3]]
    if not 1 <= exact <= _MOST:
        raise UserError(f"{what}: give an amount from 1 to 10^18, not {value!r}")
    return round(exact)


def usual_global_batch(samples: int, seq: int | None) -> int:
    """A batch for those who name none: a power of two that leaves at least 1,000 steps, and is at
    most half a million tokens, or 1,024 samples."""
    most = _MOST_SAMPLES if seq is None else max(1, _MOST_TOKENS // seq)
    wanted = max(1, min(most, samples // _LEAST_STEPS))
    return 1 << int(math.log2(wanted))
