"""`--keep KIND=AGE,SIZE` and `--most-results SIZE` of `presage serve`, as settings."""

from __future__ import annotations

from collections.abc import Sequence

from presage.manifest.quantities import duration_s, memory, memory_mib
from presage.model.errors import UserError

__all__ = ["KEPT", "keep_settings", "size_bytes"]

KEPT = ("logs", "results", "telemetry", "checkpoints", "folders")


def keep_settings(wishes: Sequence[str]) -> dict[str, float | int]:
    """`results=90d,500Gi` as fields of the settings; either bound may be left out."""
    fields: dict[str, float | int] = {}
    for wish in wishes:
        kind, _, bounds = wish.partition("=")
        parts = [part.strip() for part in bounds.split(",") if part.strip()]
        if kind not in KEPT or not 1 <= len(parts) <= 2:
            raise UserError(
                f"--keep {wish}: write KIND=AGE, KIND=SIZE or KIND=AGE,SIZE, such as "
                f"results=90d,500Gi; kinds are {', '.join(KEPT)}"
            )
        for part in parts:
            try:
                fields[f"keep_{kind}_s"] = duration_s(part)
            except ValueError:
                fields[f"keep_{kind}_bytes"] = size_bytes(part, f"--keep {wish}")
    return fields


def size_bytes(text: str, option: str) -> int:
    """A size such as 50Gi; 0 as it is."""
    try:
        return 0 if text.strip() == "0" else memory_mib(memory(text)) << 20
    except ValueError:
        raise UserError(f"{option}: write a size such as 512Mi or 50Gi, not {text!r}") from None
