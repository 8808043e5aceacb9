"""Heuristics as teachers: how they would choose from an observation, as scores of the choices.

They see what an agent sees and nothing else; whoever is best among them is imitated first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e, log, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.policy.learned.net import Floats, SlotLayout, Task

__all__ = ["TEACHERS", "Teacher", "choice"]

Teacher = dict[str, float]
"""Field of a slot → what it is worth; for a task with two actions, `field:1` is of the second and
`idle` what doing nothing is worth."""

_ESTIMATE = log2(e) * log(1e6) / 6
"""Both are logarithms; this brings `estimate` to the scale of `gpus`."""

TEACHERS: dict[Task, dict[str, Teacher]] = {
    "order": {
        "fifo": {"age": 1.0},
        "sjf": {"estimate": -1.0, "age": 1e-3},
        "qssf": {"estimate": -_ESTIMATE, "gpus": -1.0, "age": 1e-3},
        "least-attained": {"level": -1.0, "age": 1e-3},
        "least-work": {"level": -0.5, "gpus": -0.2, "estimate": -0.2, "age": 1e-3},
    },
}


def choice(teacher: Teacher, layout: SlotLayout) -> Callable[[npt.NDArray[Any]], int]:
    """Which choice it takes from an observation."""
    weights: Floats = np.zeros((len(layout.slot_fields), layout.actions))
    idle = -1e6
    for name, worth in teacher.items():
        field, _, action = name.partition(":")
        if field == "idle":
            idle = worth
        elif field == "bias":
            weights[0, int(action or 0)] = worth
        else:
            weights[layout.slot_fields.index(field), int(action or 0)] = worth
    width, slots = len(layout.slot_fields), layout.slots

    def choose(observation: npt.NDArray[Any]) -> int:
        rows = observation[: slots * width].reshape(slots, width)
        scores = (rows @ weights).ravel()
        scores[(rows[:, 1 : 1 + layout.actions] <= 0).ravel()] = -np.inf
        best = int(scores.argmax())
        return best if scores[best] > idle else layout.choices - 1

    return choose
