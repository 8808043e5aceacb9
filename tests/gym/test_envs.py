"""The Gymnasium environments: what Gymnasium asks of them, masks, rewards, seeds, vectors; and
that an episode is the simulation that it stands for."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from presage.gym.envs import ClusterEnv, RewardWeights
from presage.gym.episode import ClusterEpisode
from presage.gym.evaluate import policy_of, run_scene
from presage.gym.tasks import layout_of, maker, rules_of
from presage.gym.worlds import Generated, Mixed, Scene, Weeks, of_queue, sized, weeks_of
from presage.model.errors import TraceError, UserError
from presage.policy.learned.net import Net
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace

SMALL = Generated(jobs=(60, 90), nodes=(1, 2))


def scene(jobs: int = 60, seed: int = 2) -> Scene:
    nodes = Cluster("1x8")
    return Scene(make_trace("poisson", jobs, seed, nodes.gpus, 1.4), nodes)


def test_gymnasium_finds_nothing_wrong() -> None:
    made = gymnasium.make("presage.gym.envs:presage/Order-v0", worlds=SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped, skip_render_check=True)


def play(env: ClusterEnv, seed: int, options: dict[str, Any] | None = None) -> list[Any]:
    """What was seen and got on the way, choosing at random what can be done."""
    rng = np.random.default_rng(0)
    seen, info = env.reset(seed=seed, options=options)
    told: list[Any] = [seen.tolist(), info]
    over = False
    while not over:
        action = int(rng.choice(np.flatnonzero(env.action_masks())))
        seen, reward, ended, cut, info = env.step(action)
        assert env.observation_space.contains(seen)
        assert not info["invalid"]
        told.append((seen.tolist(), reward, info))
        over = ended or cut
    return told


def test_a_seed_is_an_episode() -> None:
    env = ClusterEnv(worlds=SMALL)
    first = play(env, 5)
    assert play(ClusterEnv(worlds=SMALL), 5) == first
    assert play(env, 6) != first


def test_rewards_add_up_to_the_named_parts() -> None:
    given = scene()
    env = ClusterEnv(weights=RewardWeights(jct=1.0, stops=0.5, fairness=0.1, utilization=0.2))
    told = play(env, 1, {"scene": given})
    parts = [info["parts"] for _, _, info in told[2:]]
    names = {"jct", "wait", "fairness", "utilization", "stops", "resizes"}
    assert all(part.keys() == names for part in parts)
    mean = told[-1][2]["mean"]
    sums = {name: sum(part[name] for part in parts) for name in names}
    for name in names:
        assert sums[name] / 60 == pytest.approx(mean[name])
    whole = 0.2 * sums["utilization"] - sums["jct"] - 0.5 * sums["stops"] - 0.1 * sums["fairness"]
    assert sum(reward for _, reward, _ in told[2:]) == pytest.approx(whole / 60)
    assert sums["fairness"] > 0


def test_an_action_that_cannot_be_is_nothing() -> None:
    env = ClusterEnv(worlds=SMALL)
    env.reset(seed=3)
    nothing = env.layout.choices - 1
    (wrong, *_) = np.flatnonzero(~env.action_masks())
    other = ClusterEnv(worlds=SMALL)
    other.reset(seed=3)
    one, two = env.step(np.int64(wrong)), other.step(nothing)
    assert one[4].pop("invalid")
    assert not two[4].pop("invalid")
    assert one[0].tolist() == two[0].tolist()
    assert one[1:] == two[1:]


def test_an_episode_is_a_simulation() -> None:
    """Driven from outside by a network, every job has the completion time that the policy made of
    that network gives it."""
    given, layout = scene(90), layout_of("order", 8)
    net = Net.random(layout, 5, np.random.default_rng(1))
    episode = ClusterEpisode(given, maker("order", 8))
    while episode.go_on():
        while episode.chooser.can_choose:
            episode.chooser.choose(net.choose(episode.chooser.observation, layout))
    done = run_scene(given, policy_of("order", net, 8, rules_of("order")))
    assert episode.parts.jct * 3600 / 90 == pytest.approx(done.avg_jct_s)
    assert episode.parts.wait * 3600 / 90 == pytest.approx(done.avg_wait_s, rel=1e-6)
    assert episode.parts.stops == done.preemptions


def test_several_at_once_are_each_what_they_are_alone() -> None:
    many = gymnasium.make_vec(
        "presage.gym.envs:presage/Order-v0", num_envs=2, vectorization_mode="sync", worlds=SMALL
    )
    seen, _ = many.reset(seed=[7, 8])  # type: ignore[arg-type]  # a seed for each
    for row, seed in zip(seen, (7, 8), strict=True):
        alone, _ = ClusterEnv(worlds=SMALL).reset(seed=seed)
        assert (row == alone).all()
    seen, rewards, *_ = many.step(np.array([0, 0]))
    assert seen.shape == (2, layout_of("order").size)
    assert rewards.shape == (2,)
    many.close()


def test_worlds_are_drawn_from_what_is_given() -> None:
    rng = np.random.default_rng(0)
    trace = make_trace("diurnal", 400, 1, 16, 1.0)
    weeks = weeks_of(trace)
    assert weeks
    assert sum(week.jobs.height for week in weeks) <= 400
    drawn = Mixed((SMALL, Weeks((trace,), 100))).draw(rng)
    assert drawn.trace.jobs["submit_s"].min() == 0
    tight, wide = sized(trace, 1.4), sized(trace, 0.4)
    assert len(tight.nodes) < len(wide.nodes)
    most = trace.jobs["gpu_milli"].max()
    assert isinstance(most, int)
    assert len(sized(trace, 1000.0).nodes) * 8 >= most / 1000
    with pytest.raises(TraceError, match="has no jobs of queue nobody"):
        of_queue(trace, "nobody")


def test_tasks_that_are_not_there() -> None:
    with pytest.raises(UserError, match="there is no task 'fly'; there are: order"):
        maker("fly")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="task order has no rule luck"):
        rules_of("order", {"luck": 1.0})
