"""What `presage doctor` finds of a cluster: one line each, for people and for scripts.

Values alone: whoever knows a cluster makes them, and only the command prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is there or is not."""

    group: str
    """What it is needed for."""
    what: str
    good: bool
    text: str = ""
    """What it means, and what to do where it is not there."""
    needed: bool = True
    """Whether that group does not work without it."""
