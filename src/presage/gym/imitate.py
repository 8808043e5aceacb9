"""Learn what a heuristic does: its choices in many scenes, and a network that is fitted to them.

The start of every training; needs neither torch nor Gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from presage.gym.episode import ClusterEpisode
from presage.gym.tasks import layout_of, maker
from presage.gym.teachers import Teacher, choice
from presage.gym.worlds import Worlds
from presage.policy.learned.net import Floats, Net, Task

__all__ = ["gather", "imitate"]

_MOST_OF_ONE = 500
"""Choices taken from one scene."""


def gather(
    task: Task,
    teacher: Teacher,
    worlds: Worlds,
    choices: int,
    rng: np.random.Generator,
    *,
    slots: int = 16,
    rules: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Observations and what the teacher chose, where there was a choice."""
    layout = layout_of(task, slots)
    make, choose = maker(task, slots, rules), choice(teacher, layout)
    least = 2 if task == "order" else 1  # who starts next is no question where only one can
    seen, chosen = list[Floats](), list[int]()
    while len(seen) < choices:
        episode, taken = ClusterEpisode(worlds.draw(rng), make), 0
        while taken < _MOST_OF_ONE and len(seen) < choices and episode.go_on():
            chooser = episode.chooser
            while chooser.can_choose:
                observation = chooser.observation
                action = choose(observation)
                if layout.mask(observation).sum() > least:
                    seen.append(observation.copy())
                    chosen.append(action)
                    taken += 1
                chooser.choose(action)
        if progress is not None:
            progress(len(seen), choices)
    return np.array(seen), np.array(chosen)


def imitate(
    net: Net,
    layout_actions: int,
    slots: int,
    observations: Floats,
    actions: npt.NDArray[np.int64],
    rng: np.random.Generator,
    *,
    epochs: int = 30,
    rate: float = 0.01,
) -> tuple[Net, float]:
    """A network that was fitted to these choices (softmax, Adam), and how often it chooses so.
    Where doing nothing was never chosen, it is never chosen, also in states unlike these."""
    count, width = len(observations), net.of_slot.shape[0]
    rows = observations[:, : slots * width].reshape(count, slots, width)
    cluster = observations[:, slots * width :]
    open_ = rows[:, :, 1 : 1 + layout_actions] > 0
    flat = net.flat()
    mean, square, step = np.zeros_like(flat), np.zeros_like(flat), 0
    for _ in range(epochs):
        for part in np.array_split(rng.permutation(count), max(count // 256, 1)):
            made = net.like(flat)
            gradient = _gradient(made, rows[part], cluster[part], open_[part], actions[part])
            step += 1
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            now = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            flat = flat - now * mean / (np.sqrt(square) + 1e-8)
    made = net.like(flat)
    if (actions < slots * layout_actions).all():
        idle = np.zeros_like(made.idle)
        idle[-1] = (
            made.out_bias.min() - np.abs(made.out).sum(axis=0).max() - 1.0
        )  # tanh is below 1
        made = replace(made, idle=idle)
    chosen = _scores(made, rows, cluster, open_)[0].argmax(axis=1)
    return made, float((chosen == actions).mean())


def _scores(
    net: Net, rows: Floats, cluster: Floats, open_: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Of every choice of every observation, and the hidden layer."""
    hidden = np.tanh(rows @ net.of_slot + (cluster @ net.of_cluster + net.bias)[:, None])
    scores = np.where(open_, hidden @ net.out + net.out_bias, -1e9)
    idle = cluster @ net.idle[:-1] + net.idle[-1]
    return np.concatenate([scores.reshape(len(rows), -1), idle[:, None]], axis=1), hidden


def _gradient(
    net: Net,
    rows: Floats,
    cluster: Floats,
    open_: npt.NDArray[np.bool_],
    actions: npt.NDArray[np.int64],
) -> Floats:
    """Of the mean cross-entropy, one after the other as in `Net.flat`."""
    scores, hidden = _scores(net, rows, cluster, open_)
    scores -= scores.max(axis=1, keepdims=True)
    off = np.exp(scores)
    off /= off.sum(axis=1, keepdims=True)
    off[np.arange(len(actions)), actions] -= 1.0
    off /= len(actions)
    of_choice = off[:, :-1].reshape(*hidden.shape[:2], -1) * open_
    back = (of_choice @ net.out.T) * (1 - hidden**2)
    together = back.sum(axis=1)
    idle = np.concatenate([cluster.T @ off[:, -1], [off[:, -1].sum()]])
    gradient = Net(
        np.einsum("nsw,nsh->wh", rows, back),
        cluster.T @ together,
        together.sum(axis=0),
        np.einsum("nsh,nsa->ha", hidden, of_choice),
        of_choice.sum(axis=(0, 1)),
        idle,
    )
    return gradient.flat()
