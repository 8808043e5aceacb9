"""Searches that libraries make, for `runtime_search` to hold ours against.

Each gets what ours gets: configurations in numbers, what known workloads took on average and
each of them. BoTorch is no dependency of Presage; it comes with
`pip install --constraint constraints.txt botorch`. Chooses nothing by what it is judged on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from presage.foresee.runtime.search import SearchSettings, Taught
from presage.foresee.runtime.search import _guesses as guesses_of
from presage.foresee.runtime.search import _rehearsals as rehearsals_of
from presage.foresee.runtime.trials import Trials
from presage.learn import Floats

__all__ = ["LIBRARIES", "Search"]

Search = Callable[[Sequence[int], dict[int, float], Taught, int], list[float]]
"""Configurations that may be tried, what each takes, what is known, how many trials -> times."""
_MOST_ASKED = 300
_SETTINGS = SearchSettings(1.0)
_ENQUEUED = 3
"""Trials that Optuna is given to begin with."""


def optuna_search(sampler: str) -> Callable[[Trials, Trials, int], Search]:
    """Optuna's sampler over the columns of the table, after the configurations that are best on
    average. What was not measured fails, and a repetition is told again: neither is a look."""

    def made(trials: Trials, known: Trials, runs: int) -> Search:
        optuna = _library("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        rows = trials.configs.rows()
        names = trials.configs.columns

        def search(
            allowed: Sequence[int], values: dict[int, float], taught: Taught, most: int
        ) -> list[float]:
            _, said = guesses_of(trials, np.array(sorted(allowed)), taught, _SETTINGS)
            there = {rows[config]: config for config in allowed}
            space = {
                name: optuna.distributions.CategoricalDistribution(
                    sorted({rows[config][k] for config in allowed}, key=str)
                )
                for k, name in enumerate(names)
            }
            options = {"multivariate": True} if sampler == "TPESampler" else {}
            maker = getattr(optuna.samplers, sampler)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                chooser = maker(seed=0, n_startup_trials=_ENQUEUED, **options)
                study = optuna.create_study(sampler=chooser)
            best = [sorted(allowed)[n] for n in np.argsort(said.mean, kind="stable")]
            for config in best[:_ENQUEUED]:
                study.enqueue_trial(dict(zip(names, rows[config], strict=True)))
            tried: dict[int, float] = {}
            for _ in range(_MOST_ASKED):
                if len(tried) >= min(most, len(values)):
                    break
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    trial = study.ask(space)
                at = there.get(tuple(trial.params[name] for name in names))
                if at is None:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    continue
                tried[at] = values[at]
                study.tell(trial, float(np.log(values[at])))
            left = np.random.default_rng(0).permutation([c for c in allowed if c not in tried])
            for config in left.tolist()[: max(0, min(most, len(values)) - len(tried))]:
                tried[config] = values[config]
            return list(tried.values())

        return search

    return made


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise SystemExit(
            f"{name} is not installed: pip install --constraint constraints.txt botorch"
        ) from None


class _Ready:
    """BoTorch, and the parts of a covariance that need its classes."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore")
        self.torch, self.botorch, gpytorch = map(_library, ("torch", "botorch", "gpytorch"))
        self.gpytorch = gpytorch
        mean_of = {"forward": lambda _, inputs: inputs[..., -1]}
        self.last_column = type("LastColumn", (gpytorch.means.Mean,), mean_of)

    def tensor(self, values: Floats) -> Any:
        return self.torch.tensor(values, dtype=self.torch.float64)

    def covariance(self, blocks: tuple[int, ...], width: int) -> Any:
        """A level, what known workloads differ in, and smooth functions of the configuration."""
        kernels = self.gpytorch.kernels
        level = kernels.ConstantKernel()
        level.constant = self.torch.tensor(4.0)
        level.raw_constant.requires_grad_(False)
        size = len(blocks)
        parts = [level]
        if width:
            columns = tuple(range(size, size + width))
            parts.append(kernels.ScaleKernel(kernels.LinearKernel(active_dims=columns)))
            parts[-1].outputscale = 0.5
            parts[-1].base_kernel.variance = 1.0
            parts[-1].base_kernel.raw_variance.requires_grad_(False)
        smooth = kernels.ScaleKernel(
            kernels.RBFKernel(ard_num_dims=size, active_dims=tuple(range(size)))
        )
        smooth.outputscale = 0.1
        parts.append(smooth)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total.double()

    def process(self, inputs: Any, targets: Any, covariance: Any, likelihood: Any) -> Any:
        return self.botorch.models.SingleTaskGP(
            inputs,
            targets,
            likelihood=likelihood,
            covar_module=covariance,
            mean_module=self.last_column(),
            outcome_transform=None,
        )

    def likelihood(self) -> Any:
        made = self.gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=self.gpytorch.constraints.GreaterThan(1e-4)
        ).double()
        made.noise = 0.005
        return made

    def next(self, model: Any, best: float, choices: Any) -> int:
        """Where the logarithm of the expected improvement is largest."""
        acquire = self.botorch.acquisition.LogExpectedImprovement(model, best, maximize=False)
        with self.torch.no_grad():
            return int(acquire(choices[:, None, :]).argmax())


def _inputs(features: Floats, known: Any, width: int) -> Floats:
    """Configuration, what known workloads differ in (a column each), and their mean."""
    directions = np.zeros((len(features), width))
    if width and len(known.differ):
        found = (known.differ * np.sqrt(known.weights)[:, None]).T[:, :width]
        directions[:, : found.shape[1]] = found
    return np.hstack([features, directions, known.mean[:, None]])


def botorch_transfer(trials: Trials, known: Trials, runs: int) -> Search:
    """A process around the mean of known workloads with their differences as a kernel; its
    hyperparameters are those that make known workloads most probable, each left out in turn."""
    ready = _Ready()
    cases = rehearsals_of(known, runs, np.random.default_rng(0))
    width = known.workload.size and len(set(known.workload.tolist()))
    covariance = ready.covariance(trials.described.blocks, width)
    likelihood = ready.likelihood()
    rng = np.random.default_rng(0)
    rows, logs = [], []
    for one in cases:
        at = np.array(sorted(one.values), np.intp)
        guesses, said = guesses_of(known, at, one.taught, _SETTINGS)
        some = rng.permutation(len(at))[:10]
        if len(some) < 10:
            continue
        took = np.log([one.values[n] for n in at.tolist()])[some]
        inputs = _inputs(guesses.described.features, said, width)[some]
        rows.append(inputs)
        logs.append((took - took.mean() + inputs[:, -1].mean())[:, None])
    model = ready.process(
        ready.tensor(np.stack(rows)), ready.tensor(np.stack(logs)), covariance, likelihood
    )
    told = ready.gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    free = [one for one in model.parameters() if one.requires_grad]
    steps = ready.torch.optim.Adam(free, lr=0.05)
    model.train()
    for _ in range(100):
        steps.zero_grad()
        loss = -told(model(*model.train_inputs), model.train_targets).sum()
        loss.backward()
        steps.step()
    return _searching(ready, trials, covariance, likelihood, width)


def _searching(
    ready: _Ready, trials: Trials, covariance: Any, likelihood: Any, width: int
) -> Search:
    def search(
        allowed: Sequence[int], values: dict[int, float], taught: Taught, most: int
    ) -> list[float]:
        at = np.array(sorted(allowed), np.intp)
        guesses, said = guesses_of(trials, at, taught, _SETTINGS)
        inputs = ready.tensor(_inputs(guesses.described.features, said, width))
        tried = [int(np.argmin(said.mean))]
        while len(tried) < min(most, len(at)):
            took = np.log([values[int(at[n])] for n in tried]) - said.level
            model = ready.process(
                inputs[tried], ready.tensor(took[:, None]), covariance, likelihood
            )
            model.eval()
            left = [n for n in range(len(at)) if n not in tried]
            tried.append(left[ready.next(model, float(took.min()), inputs[left])])
        return [values[int(at[n])] for n in tried]

    return search


def botorch_alone(trials: Trials, known: Trials, runs: int) -> Search:
    """`SingleTaskGP` as it comes, from the middle of the configurations: nothing is known."""
    ready = _Ready()

    def search(
        allowed: Sequence[int], values: dict[int, float], taught: Taught, most: int
    ) -> list[float]:
        at = np.array(sorted(allowed), np.intp)
        features = trials.features[at]
        inputs = ready.tensor(features)
        first = int(np.argmin(np.sum((features - features.mean(axis=0)) ** 2, axis=1)))
        tried = [first]
        while len(tried) < min(most, len(at)):
            took = np.log([values[int(at[n])] for n in tried])
            spread = max(float(took.std()), 1e-3) if len(took) > 1 else 1.0
            scaled = (took - took.mean()) / spread
            model = ready.botorch.models.SingleTaskGP(
                inputs[tried], ready.tensor(scaled[:, None]), outcome_transform=None
            )
            if len(tried) > 2:
                told = ready.gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
                ready.botorch.fit.fit_gpytorch_mll(told)
            model.eval()
            left = [n for n in range(len(at)) if n not in tried]
            tried.append(left[ready.next(model, float(scaled.min()), inputs[left])])
        return [values[int(at[n])] for n in tried]

    return search


LIBRARIES: dict[str, Callable[[Trials, Trials, int], Search]] = {
    "optuna-gp": optuna_search("GPSampler"),
    "optuna-tpe": optuna_search("TPESampler"),
    "botorch-alone": botorch_alone,
    "botorch-transfer": botorch_transfer,
}
