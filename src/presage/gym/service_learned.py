"""A learned rule for the replicas of a service: what it sees, how it chooses, and its bundle.

The choices are a few numbers of replicas around the present one; each is a slot with its own
fields, scored by the same small network (`policy.learned.net`), so the rule works for a service of
any size. Beside the network it has two numbers: `hold_s`, how long it never goes below what it
asked for, and `lean`, a factor on every load that it sees, with which an operator gets more or
less of a margin.
Arrays and a card, no code; deterministic; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log1p, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from presage.gym.service_rules import Stabilized, ahead
from presage.gym.services import Floats, ServiceSeen
from presage.learn.bundle import load_bundle, save_bundle
from presage.model.errors import BundleError
from presage.policy.learned.net import Net, SlotLayout

__all__ = [
    "CHANGES",
    "HIGHEST",
    "SERVICE_RULES",
    "LearnedReplicas",
    "ServiceBundle",
    "ServiceView",
    "read_service_bundle",
    "service_layout",
    "write_service_bundle",
]

CHANGES = (0, 1, -1, 2, -2, 4, -4, 8, -8, 16, -16)
"""The choices: so many replicas more."""
SLOT_FIELDS = (
    "present",
    "possible",
    "change",
    "margin",
    "margin_ahead",
    "margin_peak",
    "short",
    "spare",
)
SERVICE_FIELDS = ("load", "rise", "burst", "queue", "starting", "since_more", "startup", "service")
SERVICE_RULES = {"hold_s": 300.0, "lean": 1.0}
_FORM = 1
_MINUTES = 15
"""Whose loads are kept, for peaks and bursts."""
_MOST_HIDDEN = 1024
_ROOTS = 8.0
"""Margins are in roots of the load, divided by this."""


def service_layout() -> SlotLayout:
    """What is seen."""
    return SlotLayout(len(CHANGES), SLOT_FIELDS, SERVICE_FIELDS)


class ServiceView:
    """What a network sees of one service."""

    def __init__(self, lean: float = 1.0) -> None:
        self.layout = service_layout()
        self._lean = lean
        self._changes = np.array(CHANGES, np.float64)
        self._more_at, self._replicas = 0.0, 0

    def observe(self, seen: ServiceSeen) -> Floats:
        """Now, as one flat array."""
        setting, current, lean = seen.setting, seen.replicas, self._lean
        if current > self._replicas:
            self._more_at = seen.now
        self._replicas = current
        load, later = lean * seen.load(120.0), lean * ahead(seen)
        minutes = lean * _by_minute(seen)
        peak, burst = float(minutes.max()), float(minutes.std())
        root = sqrt(load + 1.0)
        count = current + self._changes
        rows = np.empty((len(CHANGES), len(SLOT_FIELDS)))
        rows[:, 0] = 1.0
        rows[:, 1] = (count >= setting.least) & (count <= setting.most)
        rows[:, 2] = self._changes / 16
        rows[:, 3] = (count - load) / (root * _ROOTS)
        rows[:, 4] = (count - later) / (sqrt(later + 1.0) * _ROOTS)
        rows[:, 5] = (count - peak) / (sqrt(peak + 1.0) * _ROOTS)
        rows[:, 6] = np.maximum(later - count, 0.0) / (later + 1.0)
        rows[:, 7] = np.maximum(count - peak, 0.0) / (peak + 1.0)
        service = (
            log1p(load) / 4,
            (later - load) / (root * 4),
            burst / root,
            log1p(seen.queue / (seen.ready + 1.0)),
            seen.starting / (current + 1.0),
            min((seen.now - self._more_at) / 600.0, 1.0),
            setting.startup_s / 300.0,
            log1p(setting.service_s) / 4,
        )
        return np.clip(np.concatenate((rows.ravel(), service)), -HIGHEST, HIGHEST)

    def nearest(self, desired: int, seen: ServiceSeen) -> int:
        """Which choice comes closest to a number of replicas that can be."""
        setting = seen.setting
        wanted = min(max(desired, setting.least), setting.most) - seen.replicas
        able = [k for k, one in enumerate(CHANGES) if self.possible(one, seen)]
        return min(able, key=lambda k: (abs(CHANGES[k] - wanted), k))

    @staticmethod
    def possible(change: int, seen: ServiceSeen) -> bool:
        """Whether there can be so many more."""
        return seen.setting.least <= seen.replicas + change <= seen.setting.most


HIGHEST = 10.0
"""No field is farther from 0."""


def _by_minute(seen: ServiceSeen) -> Floats:
    """The load of the last minutes."""
    setting = seen.setting
    per = max(round(60.0 / setting.sync_s), 1)
    told = np.array(seen.arrived[-per * _MINUTES :], np.float64)
    if len(told) < per:
        return np.array([seen.load(60.0)])
    whole = told[len(told) % per :].reshape(-1, per).sum(axis=1)
    loads: Floats = whole * (setting.service_s / (per * setting.sync_s))
    return loads


class LearnedReplicas:
    """A network's choices for one service."""

    def __init__(self, net: Net, rules: Mapping[str, float]) -> None:
        self._net = net
        self._view = ServiceView(rules["lean"])
        self._stable = Stabilized(rules["hold_s"])

    def wanted(self, seen: ServiceSeen) -> int:
        """So many; every second step it stays as it is."""
        if not seen.busy or len(seen.busy) % _EVERY:
            return seen.replicas
        choice = self._net.choose(self._view.observe(seen), self._view.layout)
        change = CHANGES[choice] if choice < len(CHANGES) else 0
        return self._stable.settle(seen.replicas + change, seen)


_EVERY = 2
"""Steps from one choice to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class ServiceBundle:
    """A learned rule as it is kept."""

    name: str
    version: str
    digest: str
    net: Net
    rules: Mapping[str, float]
    card: Mapping[str, Any]


def write_service_bundle(
    path: Path, net: Net, rules: Mapping[str, float], card: Mapping[str, Any]
) -> None:
    """Keep a rule; the card needs what `save_bundle` asks for, but for the features."""
    fields = {"slot": list(SLOT_FIELDS), "service": list(SERVICE_FIELDS)}
    learned = {
        "form": _FORM,
        "task": "service",
        "changes": list(CHANGES),
        "rules": dict(rules),
    }
    save_bundle(path, net.arrays(), {**card, "features": fields, "learned": learned})


def read_service_bundle(path: Path) -> ServiceBundle:
    """A bundle that was checked; anything wrong with it is a `BundleError`."""
    arrays, card = load_bundle(path)
    try:
        said, fields = card["learned"], card["features"]
        mine = said["task"] == "service"
        same = (
            said["form"] == _FORM
            and tuple(said.get("changes", ())) == CHANGES
            and tuple(fields["slot"]) == SLOT_FIELDS
            and tuple(fields.get("service", ())) == SERVICE_FIELDS
        )
        rules = {str(name): float(number) for name, number in said["rules"].items()}
        net = Net(**{name: np.asarray(array, np.float64) for name, array in arrays.items()})
        hidden = net.bias.size
        name, version = str(card["name"]), str(card["version"])
    except (KeyError, TypeError, ValueError, AttributeError):
        mine = False
    if not mine:
        raise BundleError(f"{path} is no rule for services; train one: presage gym train-service")
    if not same or rules.keys() != SERVICE_RULES.keys():
        raise BundleError(f"{path} was made for another version of Presage; train it again")
    wanted = Net.zero(service_layout(), hidden).arrays() if 0 < hidden <= _MOST_HIDDEN else {}
    fits = all(array.shape == wanted[key].shape for key, array in net.arrays().items() if wanted)
    numbers = [*rules.values(), *net.flat().tolist()] if wanted and fits else [np.nan]
    if not np.isfinite(numbers).all() or rules["lean"] <= 0 or rules["hold_s"] < 0:
        raise BundleError(f"{path} is damaged: its arrays do not fit together; train it again")
    return ServiceBundle(name, version, str(card["digest"]), net, rules, card)
