"""A model that was found by what a user wrote: its graph depends on how it is run.

`presage.foresee.graph.load.find_model` makes one. Nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.opgraph import OpGraph
from presage.model.setup import Setup

__all__ = ["NamedModel"]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model, and how its graph is made."""

    name: str
    build: Callable[[Setup], OpGraph]
    """The graph of one step (of the busiest rank) for a set-up; may take seconds."""
    decoder: DecoderShape | None = None
    """Of a decoder language model; None for any other."""
    _graphs: dict[Setup, OpGraph] = field(default_factory=dict, repr=False, compare=False)

    def graph(self, setup: Setup) -> OpGraph:
        """The graph for a set-up, made once."""
        if setup not in self._graphs:
            self._graphs[setup] = self.build(setup)
        return self._graphs[setup]
