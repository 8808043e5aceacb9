"""The Gymnasium environment of a task: a `ClusterEpisode` that an agent chooses for. Importing it
registers `presage/Order-v0`, `presage/Scale-v0` and `presage/Share-v0`.

An observation is one flat array (`SlotLayout`): slots, then the cluster. An action is a slot (and
what to do with it), or the last one, nothing. `action_masks` says what can be done; an action that
cannot be is nothing. Rewards are named parts with weights; `info["parts"]` has each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from presage.core.ports import Policy
from presage.gym.episode import ClusterEpisode, Parts
from presage.gym.jobs import usual
from presage.gym.tasks import maker
from presage.gym.worlds import Scene, Worlds
from presage.policy.learned.net import TASKS, Floats, Task
from presage.policy.learned.serve import Chooses

__all__ = ["ClusterEnv", "RewardWeights"]

_HIGHEST = 10.0
"""Fields are scaled to about 1, and never above this."""


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """How much each part of the reward counts; what is bad counts against it."""

    jct: float = 1.0
    wait: float = 0.0
    fairness: float = 0.0
    utilization: float = 0.0
    stops: float = 0.0
    resizes: float = 0.0

    def reward(self, parts: Mapping[str, float]) -> float:
        """Of what happened."""
        cost = (
            self.jct * parts["jct"]
            + self.wait * parts["wait"]
            + self.fairness * parts["fairness"]
            + self.stops * parts["stops"]
            + self.resizes * parts["resizes"]
        )
        return self.utilization * parts["utilization"] - cost


class ClusterEnv(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """A cluster, stopped whenever something is to be chosen."""

    def __init__(
        self,
        task: Task = "order",
        worlds: Worlds | None = None,
        weights: RewardWeights | None = None,
        *,
        slots: int = 16,
        rules: Mapping[str, float] | None = None,
        most_decisions: int = 5000,
    ) -> None:
        """`rules` are numbers of the task beside the network; an episode is cut after so many
        decisions."""
        self._worlds = worlds or usual(task)
        self.weights = weights or RewardWeights()
        self._make: Callable[[], tuple[Policy, Chooses]] = maker(task, slots, rules)
        self.layout = self._make()[1].layout
        self._most = most_decisions
        shape = (self.layout.size,)
        self.observation_space = gymnasium.spaces.Box(0.0, _HIGHEST, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(self.layout.choices)
        self._episode: ClusterEpisode | None = None
        self._mask = np.zeros(self.layout.choices, dtype=np.bool_)
        self._mask[-1] = True
        self._shown: Floats | None = None
        """The observation that `_able` is a part of; an episode has one array for all."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Another scene; `options={"scene": …}` gives one."""
        super().reset(seed=seed)
        scene = (options or {}).get("scene")
        for _ in range(_TRIES):
            drawn: Scene = scene or self._worlds.draw(self.np_random)
            self._episode = ClusterEpisode(drawn, self._make, fairness=self.weights.fairness != 0)
            self._decided, self._seen, self._going = 0, Parts(), self._episode.go_on()
            if self._going or scene is not None:
                break
        self._jobs = max(drawn.trace.jobs.height, 1)
        return self._observed(), {"scene": drawn.trace.name, "jobs": self._jobs}

    def step(
        self, action: np.int64 | int
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Do it, and go on to the next moment at which something is to be chosen. The reward is
        for 1,000 jobs in a trace whatever its length."""
        episode = self._episode
        assert episode is not None, "reset first"
        chooser, idle = episode.chooser, self.layout.choices - 1
        invalid = self._going and not (0 <= action <= idle and self._mask[int(action)])
        if self._going:
            chooser.choose(idle if invalid else int(action))
            if not chooser.can_choose:
                self._going = episode.go_on()
        self._decided += 1
        now = episode.parts
        parts = now.minus(self._seen)
        self._seen = now.copy()
        reward = self.weights.reward(parts) / self._jobs
        cut = self._going and self._decided >= self._most
        info = {"parts": parts, "invalid": bool(invalid), "now": episode.now}
        if not self._going:
            info["mean"] = {name: getattr(now, name) / self._jobs for name in parts}
        return self._observed(), reward, not self._going, cut, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """What can be done now; nothing always can."""
        return self._mask

    def _observed(self) -> npt.NDArray[np.float32]:
        assert self._episode is not None
        if not self._going:
            self._mask = np.zeros(self.layout.choices, dtype=np.bool_)
            self._mask[-1] = True
            return np.zeros(self.layout.size, dtype=np.float32)
        seen = self._episode.chooser.observation
        if seen is not self._shown:
            self._shown, self._able = seen, self.layout.able(seen)
        mask = np.empty(self.layout.choices, dtype=np.bool_)
        mask[-1] = True
        np.greater(self._able, 0, out=mask[:-1].reshape(self._able.shape))
        self._mask = mask
        return np.minimum(seen, _HIGHEST, dtype=np.float32)


for _task in TASKS:
    _name = f"presage/{_task.capitalize()}-v0"
    gymnasium.register(_name, "presage.gym.envs:ClusterEnv", kwargs={"task": _task})

_TRIES = 20
"""Scenes in which nothing is to be chosen are drawn again, at most so often."""
