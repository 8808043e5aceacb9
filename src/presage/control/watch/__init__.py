"""A cluster that somebody else schedules, watched: what is seen there becomes a journal like any
other, and everything that looks forward works on it. Nothing here changes the cluster."""

from __future__ import annotations

from presage.core.ports import Knowledge
from presage.model.errors import UserError

__all__ = ["ABOUT", "refuse_watched"]

ABOUT = "watch/about"
"""The entry that says which cluster a store watches."""


def refuse_watched(knowledge: Knowledge) -> None:
    """Raise UserError for a store that holds the journal of a watched cluster: nothing is decided
    there."""
    if knowledge.get(ABOUT) is not None:
        raise UserError(
            "this directory holds what `presage watch` saw of another cluster; name another --data"
        )
