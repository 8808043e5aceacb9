"""An agent of our own in the gym: of the jobs that can start, the one foreseen to be the shortest.
Needs the extra `gym`."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from presage.gym.envs import ClusterEnv
from presage.gym.worlds import Generated


def shortest(env: ClusterEnv, seen: npt.NDArray[Any]) -> int:
    """The startable slot with the smallest estimate."""
    fields = env.layout.slot_fields
    rows = seen[: env.layout.slots * len(fields)].reshape(env.layout.slots, -1)
    estimates = np.where(rows[:, 1] > 0, rows[:, fields.index("estimate")], np.inf)
    return int(estimates.argmin())


def main() -> None:
    worlds = Generated(jobs=(60, 100), nodes=(1, 2))  # traces, clusters and loads to draw from
    env = gymnasium.make("presage.gym.envs:presage/Order-v0", worlds=worlds).unwrapped
    assert isinstance(env, ClusterEnv)
    seen, info = env.reset(seed=3)
    over, reward = False, 0.0
    while not over:
        seen, got, over, _, info = env.step(shortest(env, seen))
        reward += float(got)
    print(f"average completion time {-reward:.2f} h, {info['mean']['stops']:.2f} stops a job")


if __name__ == "__main__":
    main()
