"""`--keep KIND=AGE,SIZE` of `presage serve`, as keys of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from presage.model.errors import UserError

__all__ = ["KEPT", "keep_options"]

KEPT = ("logs", "results", "telemetry", "checkpoints", "folders")


def keep_options(wishes: Sequence[str]) -> dict[str, str]:
    """`results=90d,500Gi` as the option `keep_results`; what is wrong with the bounds, the
    configuration says."""
    found = {}
    for wish in wishes:
        kind, _, bounds = wish.partition("=")
        if kind not in KEPT or not bounds.strip():
            raise UserError(
                f"--keep {wish}: write KIND=AGE, KIND=SIZE or KIND=AGE,SIZE, such as "
                f"results=90d,500Gi; kinds are {', '.join(KEPT)}"
            )
        found[f"keep_{kind}"] = bounds
    return found
