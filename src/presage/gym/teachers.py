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

__all__ = ["TEACHERS", "ByTeacher", "Teacher", "choice"]

Teacher = dict[str, float]
"""Field of a slot → what it is worth; for a task with two actions, `field:1` is of the second and
`idle` what doing nothing is worth."""

_ESTIMATE = log2(e) * log(1e6) / 6
"""Both are logarithms; this brings `estimate` to the scale of `gpus`."""

_GAIN_GETS = {"due:0": 10.0, "pays:0": 10.0, "bias:0": -19.0}
_GAIN_GIVES = {"serves:1": 5.0, "moves:1": 5.0, "bias:1": -2.0}
"""The rules of the policy `elastic`: who may grow, and when somebody gives."""
TEACHERS: dict[Task, dict[str, Teacher]] = {
    "order": {
        "fifo": {"age": 1.0},
        "sjf": {"estimate": -1.0, "age": 1e-3},
        "qssf": {"estimate": -_ESTIMATE, "gpus": -1.0, "age": 1e-3},
        "least-attained": {"level": -1.0, "age": 1e-3},
        "least-work": {"level": -0.5, "gpus": -0.2, "estimate": -0.2, "age": 1e-3},
    },
    "scale": {
        "gain": {**_GAIN_GETS, **_GAIN_GIVES, "gain:0": 1.0, "loss:1": -1.0, "idle": 0.0},
        "young": {
            **_GAIN_GETS,
            **_GAIN_GIVES,
            "gain:0": 1.0,
            "service:0": -1.0,
            "loss:1": -1.0,
            "service:1": 1.0,
            "idle": 0.0,
        },
        "triggers": {
            "rested:0": 10.0,
            "bias:0": -9.0,
            "workers:0": -1.0,
            "patient:1": 10.0,
            "bias:1": -5.0,
            "surplus:1": 1.0,
            "idle": 0.0,
        },
        "nothing": {"idle": 1e6},
    },
    "share": {
        "colocate": {"cost": -1.0},
        "least-busy": {"busy": -1.0, "cost": -1e-3},
        "never": {"alone": 1.0, "room": -1e-3, "idle": 0.5},
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


class ByTeacher:
    """A heuristic in the place of a network (`Decides`)."""

    def __init__(self, teacher: Teacher, layout: SlotLayout) -> None:
        self._choose = choice(teacher, layout)

    def choose(self, observation: npt.NDArray[Any], layout: SlotLayout) -> int:
        """As it would."""
        return self._choose(observation)
