"""The network of a learned policy: arrays, the same for every slot, and the bundle they come in.

A choice is among the slots of an observation (a job or a place each) and doing nothing. Every slot
is scored by the same small network from its own fields and those of the cluster; doing nothing by
one row of weights over those of the cluster. Scores of what cannot be done are minus infinity.
Nothing here trains or reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from presage.learn.bundle import load_bundle, save_bundle
from presage.model.errors import BundleError

__all__ = [
    "TASKS",
    "Bundle",
    "Decides",
    "Floats",
    "Net",
    "SlotLayout",
    "Task",
    "read_bundle",
    "write_bundle",
]

Floats = npt.NDArray[np.float64]
Task = Literal["order", "scale", "share"]
TASKS: tuple[Task, ...] = get_args(Task)
_FORM = 1
"""The version of the fields and of the network; a bundle of another one is refused."""
_MOST_SLOTS, _MOST_HIDDEN = 256, 1024
_GRAIN = 1e6
"""Scores are compared at a millionth, so that a library that rounds otherwise chooses the same."""


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """What an observation has, as one flat array: the slots one after the other, each with its
    fields, then the fields of the cluster. The first field of a slot is whether there is
    something in it; the next `actions` say what can be done with it."""

    slots: int
    slot_fields: tuple[str, ...]
    cluster_fields: tuple[str, ...]
    actions: int = 1
    """What can be done with each slot."""

    @property
    def size(self) -> int:
        """Numbers in an observation."""
        return self.slots * len(self.slot_fields) + len(self.cluster_fields)

    @property
    def choices(self) -> int:
        """Slots times actions, and doing nothing, which is the last."""
        return self.slots * self.actions + 1

    def mask(self, observation: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """What can be done."""
        allowed = np.ones(self.choices, dtype=np.bool_)
        allowed[:-1] = (self.able(observation) > 0).ravel()
        return allowed

    def able(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The part of an observation that says what can be done with each slot."""
        width = len(self.slot_fields)
        slots = observation[: self.slots * width].reshape(self.slots, width)
        return slots[:, 1 : 1 + self.actions]


class Decides(Protocol):
    """Chooses: a network, or a heuristic that sees the same."""

    def choose(self, observation: npt.NDArray[Any], layout: SlotLayout) -> int:
        """One of the choices that the observation allows."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """One hidden layer over the fields of a slot and of the cluster."""

    of_slot: Floats
    """Fields of a slot × hidden."""
    of_cluster: Floats
    """Fields of the cluster × hidden."""
    bias: Floats
    out: Floats
    """Hidden × actions."""
    out_bias: Floats
    idle: Floats
    """Fields of the cluster → the score of doing nothing, and its bias at the end."""

    @classmethod
    def zero(cls, layout: SlotLayout, hidden: int) -> Net:
        """Indifferent between all that can be done, but for doing nothing, which is last."""
        slot, cluster = len(layout.slot_fields), len(layout.cluster_fields)
        idle = np.zeros(cluster + 1)
        idle[-1] = -5.0
        return cls(
            np.zeros((slot, hidden)),
            np.zeros((cluster, hidden)),
            np.zeros(hidden),
            np.zeros((hidden, layout.actions)),
            np.zeros(layout.actions),
            idle,
        )

    @classmethod
    def random(cls, layout: SlotLayout, hidden: int, rng: np.random.Generator) -> Net:
        """To begin with."""
        zero = cls.zero(layout, hidden)
        scale = 1 / np.sqrt(len(layout.slot_fields) + len(layout.cluster_fields))
        flat = rng.normal(0.0, scale, zero.flat().size)
        made = zero.like(flat)
        return cls(made.of_slot, made.of_cluster, zero.bias, made.out, zero.out_bias, zero.idle)

    def arrays(self) -> dict[str, Floats]:
        """By name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def flat(self) -> Floats:
        """All numbers one after the other."""
        return np.concatenate([array.ravel() for array in self.arrays().values()])

    def like(self, flat: Floats) -> Net:
        """One of the same shape with these numbers."""
        made, at = dict[str, Floats](), 0
        for name, array in self.arrays().items():
            made[name] = flat[at : at + array.size].reshape(array.shape)
            at += array.size
        return Net(**made)

    def scores(self, observation: npt.NDArray[Any], layout: SlotLayout) -> Floats:
        """Of every choice."""
        slots, width = layout.slots, self.of_slot.shape[0]
        rows = observation[: slots * width].reshape(slots, width)
        cluster = observation[slots * width :]
        hidden = np.tanh(rows @ self.of_slot + (cluster @ self.of_cluster + self.bias))
        scores = np.empty(layout.choices)
        scores[:-1] = (hidden @ self.out + self.out_bias).ravel()
        scores[-1] = cluster @ self.idle[:-1] + self.idle[-1]
        scores[:-1][(rows[:, 1 : 1 + layout.actions] <= 0).ravel()] = -np.inf
        return scores

    def choose(self, observation: npt.NDArray[Any], layout: SlotLayout) -> int:
        """The best; the first of those that are alike."""
        return int(np.rint(self.scores(observation, layout) * _GRAIN).argmax())


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A learned policy as it is kept."""

    task: Task
    name: str
    version: str
    digest: str
    net: Net
    layout: SlotLayout
    rules: Mapping[str, float]
    """Numbers that the task goes by beside the network."""
    card: Mapping[str, Any]


def write_bundle(
    path: Path,
    task: Task,
    net: Net,
    layout: SlotLayout,
    rules: Mapping[str, float],
    card: Mapping[str, Any],
) -> None:
    """Keep a network; the card needs what `save_bundle` asks for, but for the features."""
    fields = {"slot": list(layout.slot_fields), "cluster": list(layout.cluster_fields)}
    learned = {
        "form": _FORM,
        "task": task,
        "slots": layout.slots,
        "actions": layout.actions,
        "rules": dict(rules),
    }
    save_bundle(path, net.arrays(), {**card, "features": fields, "learned": learned})


def read_bundle(path: Path) -> Bundle:
    """A bundle that was checked; anything wrong with it is a `BundleError`."""
    arrays, card = load_bundle(path)
    try:
        said, fields = card["learned"], card["features"]
        task, form = said["task"], said["form"]
        layout = SlotLayout(
            int(said["slots"]),
            tuple(map(str, fields["slot"])),
            tuple(map(str, fields["cluster"])),
            int(said["actions"]),
        )
        rules = {str(name): float(number) for name, number in said["rules"].items()}
        net = Net(**{name: np.asarray(array, np.float64) for name, array in arrays.items()})
        hidden = net.bias.size
        name, version = str(card["name"]), str(card["version"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BundleError(f"{path} is no learned policy; train one: presage gym train") from None
    if task not in TASKS or form != _FORM:
        raise BundleError(f"{path} was made for another version of Presage; train it again")
    small = 0 < layout.slots <= _MOST_SLOTS and 0 < hidden <= _MOST_HIDDEN
    wanted = Net.zero(layout, hidden).arrays() if small and 0 < layout.actions <= 2 else {}
    fits = all(array.shape == wanted[key].shape for key, array in net.arrays().items() if wanted)
    finite = all(np.isfinite(array).all() for array in net.arrays().values())
    if not (wanted and fits and finite and all(map(np.isfinite, rules.values()))):
        raise BundleError(f"{path} is damaged: its arrays do not fit together; train it again")
    return Bundle(task, name, version, str(card["digest"]), net, layout, rules, card)
