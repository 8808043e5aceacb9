"""Speed of a pair of Gavel's jobs, one of a model never measured beside another: by turns.

Trees have nothing to go by there. Two processes use a GPU in turns: long kernels keep it and short
ones wait, up to the length of a turn. They lose time when both want the GPU at once: a job that
waits for its host leaves it, but two such jobs wait for each other there; one whose kernels leave
gaps between them loses less. What decides is computed from each job alone. Five constants say how
much, for three GPUs: the power of a kernel's length, the longest turn, and what a neighbour costs
on each GPU. What is left of the speeds of a configuration in the training set, as own and as other
job, is an effect of that configuration.

Only the benchmark uses it: kernel counts and hosts are known of Gavel's jobs alone, and with what
is foreseen from a graph in their place it is no better than trees. `presage predict --pair` goes
by the shipped trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.optimize import least_squares

from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import load_graph
from presage.foresee.interference import FEATURES, InterferenceEstimator, Pairs
from presage.foresee.predict import predict_graph
from presage.learn import Floats
from presage.learn.conformal import Conformal

__all__ = ["Alone", "Turns", "TurnsEstimator", "foreseen_turns", "turns_of", "turns_row"]

# Operators of a training step, forward, backward and optimizer, in the graphs of the zoo where it
# has the model. The LSTM has two kernels in each direction for each of 2 layers and 35 steps; the
# recommender has as many operators as the zoo's; A3C plays 20 moves of about 30 operators, runs
# backward through them, and does so in 4 processes. Its games are played by the host.
_KERNELS = {
    "ResNet-18": 165,
    "ResNet-50": 410,
    "Transformer": 775,
    "LM": 320,
    "Recommendation": 40,
    "CycleGAN": 1906,
    "A3C": 2000,
}
_ZOO = {
    "ResNet-18": "zoo:resnet18-cifar10",
    "ResNet-50": "zoo:resnet50",
    "Transformer": "zoo:transformer-multi30k",
    "LM": "zoo:lstm-wikitext2",
    "Recommendation": "zoo:autoencoder-ml20m",
    "CycleGAN": "zoo:cyclegan",
    "A3C": "zoo:a3c",
}
_PROCESSES = {"A3C": 4.0}
_ON_HOST = frozenset({"A3C"})
"""Jobs whose host works whenever the GPU does not."""
_GPUS = ("k80", "p100", "v100")
"""By the bandwidth of their memory."""
_LEAST_SHARE = 0.3
"""A job that mostly waits for its host is in the way more often than its kernels tell."""
_BANDWIDTH = FEATURES.index("GPU bandwidth")
_BATCHES = [FEATURES.index("own batch"), FEATURES.index("other's batch")]
_SLOWEST, _FASTEST = 0.01, 1.5

# -- what is known of each job alone --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alone:
    """How a job uses a GPU when nobody else does."""

    kernel_ms: float
    """Mean length of the kernels of a step."""
    gpu_share: float
    """Part of a step in which the GPU has work, 0 to 1."""
    host_share: float
    """Part of a step that waits for the host: a faster machine with the same GPU does without."""
    processes: float = 1.0


def turns_row(own: Alone, other: Alone, gpu: Gpu) -> Floats:
    """What decides who waits for whom.

    How long the kernels of the own and of the other job are (log of the MB that the GPU's memory
    moves meanwhile), how often both want the GPU (log), and how often both want the host. The own
    job wants the GPU for as much of a step as it has work there, out of what does not wait for the
    host. Several processes want more turns, but not always all at once: as many as the root.
    """
    wants = max(other.gpu_share, _LEAST_SHARE) * own.gpu_share / (1 - own.host_share)
    wants *= (other.processes / own.processes) ** 0.5
    lengths = np.array([own.kernel_ms, other.kernel_ms]) * gpu.bandwidth_gbs
    return np.append(np.log([*lengths, wants]), own.host_share * other.host_share)


def turns_of(data_dir: Path, pairs: Pairs) -> Floats:
    """`turns_row` of each of Gavel's pairs."""
    table = pl.read_parquet(data_dir / "colocation/gavel_isolated.parquet")
    here, elsewhere = (
        {
            (row["gpu"], row["model"]): row["throughput_steps_s"]
            for row in table.filter(scale_factor=1, source=source).to_dicts()
        }
        for source in ("gavel_sim", "gavel_phys")
    )
    fastest = {job: max(rate, elsewhere[job]) for job, rate in here.items()}
    gpus = {name: find(name) for name in _GPUS}
    alone = {
        job: _alone(job[1], rate, fastest[job], _gpu_s(job, fastest, gpus))
        for job, rate in here.items()
        if job[0] in gpus
    }
    return np.stack(
        [
            turns_row(alone[on, own], alone[on, other], gpus[on])
            for on, (own, other) in zip(_on(pairs), pairs.configurations.tolist(), strict=True)
        ]
    )


def foreseen_turns(pairs: Pairs) -> Floats:
    """`turns_row` of each of Gavel's pairs by what is foreseen from graphs of the zoo: operators
    for kernels, step and utilization as they are foreseen, and hosts that nobody waits for."""
    graphs = {model: load_graph(target) for model, target in _ZOO.items()}

    @cache
    def alone(model: str, batch: int, on: str) -> Alone:
        (told,) = predict_graph(graphs[model], batch, [find(on)]).gpus.values()
        kernel_ms = told.step_ms.p50 / len(graphs[model])
        return Alone(kernel_ms, told.gpu_util_pct.p50 / 100, 0.0)

    batches = np.rint(np.exp(pairs.X[:, _BATCHES])).astype(int).tolist()
    return np.stack(
        [
            turns_row(alone(own, mine, on), alone(other, theirs, on), find(on))
            for on, (own, other), (mine, theirs) in zip(
                _on(pairs), pairs.models.tolist(), batches, strict=True
            )
        ]
    )


def _on(pairs: Pairs) -> list[str]:
    """The GPU of each row."""
    bandwidths, at = np.unique(pairs.X[:, _BANDWIDTH], return_inverse=True)
    assert bandwidths.size == len(_GPUS)
    return [_GPUS[place] for place in at]


def _alone(job: str, rate: float, fastest: float, gpu_s: float) -> Alone:
    """From steps a second, here and where the host is fastest, and what the GPU needs for one."""
    model = job.partition(" (")[0]
    gpu_share = gpu_s * rate
    host_share = 1 - gpu_share if model in _ON_HOST else 1 - rate / fastest
    kernel_ms = 1e3 / fastest / _KERNELS[model]
    return Alone(kernel_ms, gpu_share, host_share, _PROCESSES.get(model, 1.0))


def _gpu_s(
    job: tuple[str, str], fastest: dict[tuple[str, str], float], gpus: dict[str, Gpu]
) -> float:
    """What the GPU needs at most for a step: no more than a slower GPU would, were it as fast."""
    pace = {on: float(np.sqrt(gpu.fp32_tflops * gpu.bandwidth_gbs)) for on, gpu in gpus.items()}
    mine = pace[job[0]]
    return min(of / mine / fastest[on, job[1]] for on, of in pace.items() if of <= mine)


# -- what follows ---------------------------------------------------------------------------------


class TurnsEstimator:
    """Normalised speed of measured pairs: by trees where both models were met in training, by how
    jobs take turns where one was not."""

    def __init__(self, trees: int = 150) -> None:
        self.trees = trees

    def fit(self, pairs: Pairs, turns: Floats) -> Self:
        """Learn from measured pairs that could share a GPU; several models are needed."""
        held_out, truth, group = [], [], []
        for name in np.unique(pairs.models):
            with_it = np.any(pairs.models == name, axis=1)
            others = Turns.fit(pairs.take(~with_it), turns[~with_it])
            guess = others.predict(pairs.take(with_it), turns[with_it])
            held_out.append(guess)
            truth.append(pairs.speed[with_it])
            group += [name] * guess.size
        self.conformal_ = Conformal.fit(
            np.concatenate(truth), np.concatenate(held_out), group, space="log"
        )
        self.turns_ = Turns.fit(pairs, turns)
        self.met_ = np.unique(pairs.models)
        self.of_met_ = InterferenceEstimator(self.trees).fit(pairs.X, pairs.speed, pairs.models)
        return self

    def predict_interval(self, pairs: Pairs, turns: Floats) -> Floats:
        """p10, p50 and p90 of each row."""
        middle = self.turns_.predict(pairs, turns)
        interval = self.conformal_.interval(middle)
        interval[:, 1] = middle
        interval = np.clip(np.sort(interval, axis=1), 0.0, _FASTEST)
        met = np.isin(pairs.models, self.met_).all(axis=1)
        if met.any():
            interval[met] = self.of_met_.predict_interval(pairs.X[met])
        return interval


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Constants of taking turns, and effects of the configurations that were measured."""

    gpus: Floats
    """The log bandwidth that tells a GPU, in order."""
    constants: Floats
    """What a neighbour costs on each GPU (log); the power of a kernel's length; the longest
    turn, in the log MB of `turns_row`."""
    keys: npt.NDArray[np.str_]
    effects: Floats

    @classmethod
    def fit(cls, pairs: Pairs, turns: Floats) -> Turns:
        """Learn from measured pairs."""
        bandwidth = pairs.X[:, _BANDWIDTH]
        gpus = np.unique(bandwidth)
        found = least_squares(
            lambda constants: _by_turns(gpus, constants, bandwidth, turns) - pairs.speed,
            np.append(np.zeros(gpus.size), [0.5, np.log(200.0)]),
            loss="soft_l1",
            f_scale=0.05,
        )
        left = pairs.speed - _by_turns(gpus, found.x, bandwidth, turns)
        keys = np.unique(_sides(pairs))
        return cls(gpus, found.x, keys, _effects(_marks(pairs, keys), left))

    def predict(self, pairs: Pairs, turns: Floats) -> Floats:
        """The speed of each row."""
        speed = _by_turns(self.gpus, self.constants, pairs.X[:, _BANDWIDTH], turns)
        return np.clip(speed + _marks(pairs, self.keys) @ self.effects, _SLOWEST, 1.0)


def _by_turns(gpus: Floats, constants: Floats, bandwidth: Floats, turns: Floats) -> Floats:
    """1 ÷ (1 + time lost to the other on the GPU + on the host), in steps alone."""
    own, other, wants, host = turns.T
    cost, (power, longest) = constants[:-2], constants[-2:]
    nearest = np.argmin(np.abs(bandwidth[:, None] - gpus), axis=1)
    longer = np.logaddexp(-own, -longest) - np.logaddexp(-other, -longest)
    return np.asarray(1 / (1 + np.exp(cost[nearest] + power * longer + wants) + host))


def _sides(pairs: Pairs) -> npt.NDArray[np.str_]:
    """Names of the own configuration and of the other, each on its GPU."""
    return np.array(
        [
            [f"{gpu:.3f} own {own}", f"{gpu:.3f} other {other}"]
            for gpu, (own, other) in zip(pairs.X[:, _BANDWIDTH], pairs.configurations, strict=True)
        ]
    )


def _marks(pairs: Pairs, keys: npt.NDArray[np.str_]) -> Floats:
    """1 where a row has the key on either side."""
    sides = _sides(pairs)
    return np.asarray((sides[:, :1] == keys) | (sides[:, 1:] == keys), np.float64)


def _effects(marks: Floats, left: Floats) -> Floats:
    """Ridge regression: each effect shrinks as if one more row had none."""
    found = np.linalg.solve(marks.T @ marks + np.eye(marks.shape[1]), marks.T @ left)
    return np.asarray(found, np.float64)
