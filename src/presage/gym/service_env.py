"""The Gymnasium environment of a service: how many replicas, every few seconds. Importing it
registers `presage/Service-v0`.

An observation is one flat array (`service_layout`): the choices, then the service. An action is a
choice, or the last one, nothing; the number stays at the highest of the last `hold_s` seconds, as
with every rule. Rewards are named parts with prices, per GPU second of work in the whole scene;
`info["parts"]` has each.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from presage.gym.service_learned import CHANGES, HIGHEST, ServiceView
from presage.gym.service_loads import MadeLoads, ServiceWorlds
from presage.gym.service_rules import WINDOW_S, Stabilized
from presage.gym.services import ServiceParts, ServicePrices, ServiceRun, ServiceScene

__all__ = ["ServiceEnv"]


class ServiceEnv(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """A service that waits for the next number of replicas."""

    def __init__(
        self,
        worlds: ServiceWorlds | None = None,
        prices: ServicePrices | None = None,
        *,
        hold_s: float = WINDOW_S,
    ) -> None:
        self._worlds = worlds or MadeLoads()
        self.prices = prices or ServicePrices()
        self._hold_s = hold_s
        self._view = ServiceView()
        self.layout = self._view.layout
        shape = (self.layout.size,)
        self.observation_space = gymnasium.spaces.Box(-HIGHEST, HIGHEST, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(self.layout.choices)
        self._run: ServiceRun | None = None
        self._mask = np.zeros(self.layout.choices, dtype=np.bool_)
        self._mask[-1] = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Another scene; `options={"scene": …}` gives one."""
        super().reset(seed=seed)
        scene: ServiceScene = (options or {}).get("scene") or self._worlds.draw(self.np_random)
        self._run = run = ServiceRun(scene)
        self._view, self._stable = ServiceView(), Stabilized(self._hold_s)
        run.advance(run.seen.replicas)  # nothing is known before the first step
        self._before = run.parts.copy()
        self._work_s = max(run.requests * scene.setting.service_s, 1.0)
        return self._observed(), {"scene": scene.curve.name, "requests": run.requests}

    def step(
        self, action: np.int64 | int
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """So many replicas more, and a step of the service."""
        run = self._run
        assert run is not None, "reset first"
        invalid = not (0 <= action < self.layout.choices and self._mask[int(action)])
        change = 0 if invalid or action == self.layout.choices - 1 else CHANGES[int(action)]
        if not run.over:
            run.advance(self._stable.settle(run.seen.replicas + change, run.seen))
        parts = run.parts.minus(self._before)
        self._before = run.parts.copy()
        reward = -self.prices.cost(parts) / self._work_s
        info: dict[str, Any] = {"parts": parts, "invalid": bool(invalid), "now": run.seen.now}
        if run.over:
            info["sum"] = run.parts.minus(ServiceParts())
        return self._observed(), reward, run.over, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """What can be done now; nothing always can."""
        return self._mask

    def _observed(self) -> npt.NDArray[np.float32]:
        assert self._run is not None
        seen = self._view.observe(self._run.seen)
        self._mask = self.layout.mask(seen)
        return seen.astype(np.float32)


gymnasium.register("presage/Service-v0", "presage.gym.service_env:ServiceEnv")
