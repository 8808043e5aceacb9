"""What a job says of the links of its nodes. Knows no network and measures nothing."""

from __future__ import annotations

from presage.model.job import JobSpec

__all__ = ["LINK_SHARE", "said_link_share"]

LINK_SHARE = "presage/link-share"
"""The label of a job whose owner said for how much of its step it talks, 0 to 1, where it is on
several nodes and nobody else loads their links."""


def said_link_share(spec: JobSpec) -> float | None:
    """That share; None where nobody said it. Pods of others bring labels that nobody checked: what
    is no share says nothing."""
    said = spec.labels.get(LINK_SHARE) if spec.labels else None
    try:
        share = float(said) if said is not None else -1.0
    except ValueError:
        return None
    return share if 0.0 <= share < 1.0 else None
