"""A2C, PPO and DQN of Stable-Baselines3 on the environments, with policies that score every slot
by the same small network (`policy.learned.net`), so that what was trained is exported as it is.

What cannot be done is masked in the policy itself: the observation says it. Progress is kept as
plain arrays, nothing is pickled; going on starts with the networks of before and a fresh
optimizer. Needs the extra `gym` and torch, imported here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from presage.gym.envs import ClusterEnv, RewardWeights
from presage.gym.worlds import Worlds
from presage.model.errors import BundleError
from presage.policy.learned.net import Net, SlotLayout, Task
from presage.sim._files import replacing

__all__ = ["ALGORITHMS", "Algorithm", "Reinforced", "train"]

Algorithm = Literal["a2c", "ppo", "dqn"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_NEVER = -1e4
"""The score of what cannot be done."""
_SETTINGS: dict[Algorithm, dict[str, Any]] = {
    "a2c": {"n_steps": 32, "learning_rate": 3e-4, "ent_coef": 0.003, "gamma": 0.999},
    "ppo": {
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 4,
        "learning_rate": 3e-4,
        "ent_coef": 0.003,
        "gamma": 0.999,
    },
    "dqn": {
        "buffer_size": 50_000,
        "learning_starts": 1_000,
        "learning_rate": 1e-4,
        "gamma": 0.999,
        "exploration_final_eps": 0.02,
        "target_update_interval": 1_000,
    },
}


class _SlotScores(nn.Module):
    """`Net` in torch."""

    def __init__(self, net: Net, layout: SlotLayout) -> None:
        super().__init__()
        self.layout = layout
        for name, array in net.arrays().items():
            setattr(self, name, nn.Parameter(torch.tensor(array, dtype=torch.float32)))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        layout, width = self.layout, len(self.layout.slot_fields)
        rows = observation[:, : layout.slots * width].reshape(-1, layout.slots, width)
        cluster = observation[:, layout.slots * width :]
        together = (cluster @ self.of_cluster + self.bias)[:, None]
        scores = torch.tanh(rows @ self.of_slot + together) @ self.out + self.out_bias
        able = rows[:, :, 1 : 1 + layout.actions] > 0
        scores = torch.where(able, scores, torch.full_like(scores, _NEVER))
        idle = cluster @ self.idle[:-1] + self.idle[-1]
        return torch.cat([scores.flatten(1), idle[:, None]], dim=1)

    def net(self) -> Net:
        """The arrays as they are now."""
        names = Net.__slots__
        return Net(**{name: getattr(self, name).detach().double().numpy() for name in names})


class _AsItIs(nn.Module):
    """Both networks look at the observation itself."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.latent_dim_pi = self.latent_dim_vf = size

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return features, features

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        return features


class _SlotActor(ActorCriticPolicy):
    """Of A2C and PPO."""

    def __init__(self, *given: Any, net: Net, layout: SlotLayout, **more: Any) -> None:
        self._begin, self._layout = net, layout
        super().__init__(*given, **more)

    def _build(self, lr_schedule: Any) -> None:
        size = self._layout.size
        self.mlp_extractor = _AsItIs(size)
        self.action_net = _SlotScores(self._begin, self._layout)
        self.value_net = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1))
        made = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)
        self.optimizer = made


class _SlotValues(DQNPolicy):
    """Of DQN: the scores are the values of actions."""

    def __init__(self, *given: Any, net: Net, layout: SlotLayout, **more: Any) -> None:
        self._begin, self._layout = net, layout
        super().__init__(*given, **more)

    def make_q_net(self) -> QNetwork:
        made = super().make_q_net()
        made.q_net = _SlotScores(self._begin, self._layout)
        return made


@dataclass(frozen=True, slots=True)
class Reinforced:
    """What came out."""

    net: Net
    curve: list[float]
    """The mean reward of the episodes that ended, one number for each that did."""
    steps: int


class _RewardWatch(BaseCallback):
    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        super().__init__()
        self.rewards: list[float] = []
        self._total, self._progress = total, progress
        self._sums: Any = None

    def _on_step(self) -> bool:
        rewards, done = self.locals["rewards"], self.locals["dones"]
        self._sums = rewards.copy() if self._sums is None else self._sums + rewards
        for k in np.flatnonzero(done):
            self.rewards.append(float(self._sums[k]))
            self._sums[k] = 0.0
        if self._progress is not None and self.n_calls % 64 == 0:
            self._progress(min(self.num_timesteps, self._total), self._total)
        return True


def train(
    task: Task,
    algorithm: Algorithm,
    net: Net,
    worlds: Worlds,
    *,
    steps: int,
    slots: int = 16,
    rules: dict[str, float] | None = None,
    weights: RewardWeights | None = None,
    seed: int = 0,
    envs: int = 4,
    state: Path | None = None,
    tensorboard: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Reinforced:
    """Go on from a network; `state` is a file to keep progress in, and to go on from."""
    torch.set_num_threads(1)  # the networks are small
    made = partial(
        ClusterEnv, task, worlds, weights, slots=slots, rules=rules, most_decisions=2000
    )
    space = DummyVecEnv([made] * (1 if algorithm == "dqn" else envs))
    layout = space.envs[0].unwrapped.layout
    assert isinstance(space.action_space, spaces.Discrete)
    kinds: dict[Algorithm, Any] = {"a2c": A2C, "ppo": PPO, "dqn": DQN}
    model = kinds[algorithm](
        _SlotValues if algorithm == "dqn" else _SlotActor,
        space,
        policy_kwargs={"net": net, "layout": layout},
        seed=seed,
        device="cpu",
        tensorboard_log=None if tensorboard is None else str(tensorboard),
        **_SETTINGS[algorithm],
    )
    before = _load(state, model, seed) if state is not None and state.exists() else 0
    watch = _RewardWatch(steps, progress)
    try:
        model.learn(total_timesteps=max(steps - before, 0), callback=watch)
    finally:
        if state is not None:
            _save(state, model, before + model.num_timesteps, seed)
    scores = model.policy.q_net.q_net if algorithm == "dqn" else model.policy.action_net
    return Reinforced(scores.net(), watch.rewards, before + model.num_timesteps)


def _save(path: Path, model: Any, steps: int, seed: int) -> None:
    arrays = {name: tensor.numpy() for name, tensor in model.policy.state_dict().items()}
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, steps=np.array(steps), seed=np.array(seed), **arrays)


def _load(path: Path, model: Any, seed: int) -> int:
    try:
        with np.load(path, allow_pickle=False) as file:
            kept = {name: torch.tensor(file[name]) for name in file.files}
        steps, other = int(kept.pop("steps")), int(kept.pop("seed")) != seed
        if other:
            raise ValueError("another seed")
        model.policy.load_state_dict(kept)
    except Exception:
        raise BundleError(
            f"{path} is the state of another training; remove it or choose another --out"
        ) from None
    return steps
