"""A conditional restricted Boltzmann machine: what a sample looks like, given those before it.

A window is (history + 1) rows of scaled features, oldest first; c is the flattened history and v
the last row. Hidden units h = sigmoid(W v + B c + b_h) describe the window, and Wᵀ h + A c + b_v
is what they make of v (Gaussian visible units of unit variance, means only). Training is
contrastive divergence with k mean-field steps (CD-k), by mini-batches with momentum, in single
precision; answers are given in double precision.

`compat="hiest"` repeats the published code of AI4DL (HotCloud 2020), mistakes included: training
takes one slice at a time in the given order and never stops early, and `activations` reads the
history feature by feature, describes the row before, and pads the first rows with zeros. Nothing
here scales, resamples or clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from presage.model.errors import BundleError, NotFitted, TelemetryError

__all__ = ["CRBM", "Weights"]

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

_LEAST_WINDOWS = 20
_PROGRESS = 0.005
"""An epoch that lowers the held-out error by a smaller part counts as none."""
_PARTS = ("W", "A", "B", "v_bias", "h_bias")


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """W (hidden, visible), A (visible, history × visible), B (hidden, history × visible) and the
    two biases. The columns of A and B run through time first."""

    W: npt.NDArray[Any]
    A: npt.NDArray[Any]
    B: npt.NDArray[Any]
    v_bias: npt.NDArray[Any]
    h_bias: npt.NDArray[Any]

    @classmethod
    def drawn(
        cls, visible: int, hidden: int, history: int, seed: int, published: bool = False
    ) -> Weights:
        """Small random weights; `published` takes the generator of the published code."""
        shapes = ((hidden, visible), (visible, history * visible), (hidden, history * visible))
        sizes = [rows * columns for rows, columns in shapes]
        random = np.random.default_rng(seed)
        drawn = _old_normals(seed, sum(sizes)) if published else random.normal(size=sum(sizes))
        W, A, B = (
            (0.2 * part).astype(np.float32).reshape(shape)
            for part, shape in zip(np.split(drawn, np.cumsum(sizes)[:-1]), shapes, strict=True)
        )
        by = np.float32(max(history, 1) * visible)
        zeros = np.zeros(visible, np.float32), np.zeros(hidden, np.float32)
        return cls(W / by, A / by, B / by, *zeros)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Weights:
        """The weights in these arrays; refuses any that contradict each other."""
        try:
            W, A, B, v_bias, h_bias = (np.asarray(arrays[name]) for name in _PARTS)
        except KeyError as missing:
            raise BundleError(f"the weights of a CRBM lack {missing}") from None
        v_bias, h_bias = v_bias.reshape(-1), h_bias.reshape(-1)
        hidden, visible = W.shape if W.ndim == 2 else (0, 0)
        sound = (
            hidden * visible > 0
            and A.ndim == B.ndim == 2
            and A.shape[1] == B.shape[1]
            and A.shape[1] % visible == 0
            and (len(A), len(B), v_bias.size, h_bias.size) == (visible, hidden, visible, hidden)
            and all(
                part.dtype.kind == "f" and np.isfinite(part).all()
                for part in (W, A, B, v_bias, h_bias)
            )
        )
        if not sound:
            raise BundleError("the weights of a CRBM contradict each other or are not finite")
        return cls(W, A, B, v_bias, h_bias)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {name: getattr(self, name) for name in _PARTS}

    @property
    def history(self) -> int:
        """How many rows before the last one a window has."""
        return int(self.A.shape[1] // self.W.shape[1])


class CRBM:
    """An encoder of windows; `fit` learns `weights_` and `errors_`, the held-out reconstruction
    error after each epoch."""

    kind = "crbm"
    _up: tuple[Weights, Floats] | None = None

    def __init__(
        self,
        hidden: int = 10,
        *,
        learning_rate: float = 0.02,
        momentum: float = 0.9,
        batch: int = 256,
        cd_steps: int = 1,
        epochs: int = 60,
        patience: int = 3,
        seed: int = 0,
        compat: Literal["hiest"] | None = None,
    ) -> None:
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.batch = batch
        self.cd_steps = cd_steps
        self.epochs = epochs
        self.patience = patience
        self.seed = seed
        self.compat = compat

    @classmethod
    def from_weights(cls, weights: Weights, compat: Literal["hiest"] | None = None) -> CRBM:
        """A machine that was trained elsewhere."""
        machine = cls(len(weights.W), compat=compat)
        machine.weights_ = weights
        machine.errors_ = []
        return machine

    def fit(self, windows: npt.NDArray[Any], start: Weights | None = None) -> Self:
        """Learn from windows (n, history + 1, features), all finite; `start` replaces the random
        start."""
        if windows.ndim != 3 or not np.isfinite(windows).all():
            raise TelemetryError("a CRBM learns from finite windows (n, history + 1, features)")
        visible, history = windows.shape[2], windows.shape[1] - 1
        published = self.compat == "hiest"
        begin = start or Weights.drawn(visible, self.hidden, history, self.seed, published)
        flat = np.ascontiguousarray(windows, dtype=np.float32).reshape(
            len(windows), windows.shape[1] * windows.shape[2]
        )
        if self.compat == "hiest":
            self.weights_, self.errors_ = _one_slice_at_a_time(
                flat, begin, np.float32(self.learning_rate), self.epochs
            )
            return self
        if len(windows) < _LEAST_WINDOWS:
            raise TelemetryError(
                f"{len(windows)} windows of {history + 1} samples are too few to learn from; "
                f"{_LEAST_WINDOWS} are needed: give more or longer series"
            )
        self.weights_, self.errors_ = self._by_batches(flat, begin)
        return self

    def encode(self, windows: npt.NDArray[Any]) -> Floats:
        """The means of the hidden units, (n, hidden)."""
        return self._double(windows)[1]

    def surprise(self, windows: npt.NDArray[Any]) -> Floats:
        """The mean squared error with which each window's last row is reconstructed."""
        v, h = self._double(windows)
        weights, flat = (
            self.weights_,
            windows.reshape(len(windows), windows.shape[1] * windows.shape[2]),
        )
        c = flat[:, : -v.shape[1]].astype(np.float64)
        back = h @ weights.W.astype(np.float64) + c @ weights.A.T.astype(np.float64)
        error: Floats = np.mean((v - back - weights.v_bias) ** 2, axis=1)
        return error

    def activations(self, rows: Floats) -> Floats:
        """One pod's scaled rows as the published code describes them: the first rows are zeros,
        and row k shows the window that ends with row k − 1, its history feature by feature."""
        if self.compat != "hiest":
            raise TelemetryError("activations are for compat='hiest'; use encode")
        weights, history = self._fitted(), self._fitted().history
        answers = np.zeros((len(rows), len(weights.W)))
        if len(rows) > history + 1:
            views = np.lib.stride_tricks.sliding_window_view(rows, history + 1, axis=0)[:-1]
            v = views[:, :, -1]
            by_feature = views[:, :, :-1].reshape(len(views), -1)
            answers[history + 1 :] = _sigmoid(
                v @ weights.W.T + by_feature @ weights.B.T + weights.h_bias
            )
        return answers

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return self._fitted().to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> CRBM:
        """A fitted machine from its arrays."""
        return cls.from_weights(Weights.from_arrays(arrays))

    def _fitted(self) -> Weights:
        if not hasattr(self, "weights_"):
            raise NotFitted("this CRBM is not fitted; call fit or load a bundle")
        return self.weights_

    def _double(self, windows: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        weights = self._fitted()
        if self._up is None or self._up[0] is not weights:
            both = np.concatenate([weights.B, weights.W], axis=1).astype(np.float64)
            self._up = weights, np.ascontiguousarray(both.T)
        flat = windows.reshape(len(windows), windows.shape[1] * windows.shape[2]).astype(
            np.float64, copy=False
        )
        return flat[:, -weights.W.shape[1] :], _sigmoid(flat @ self._up[1] + weights.h_bias)

    def _by_batches(self, flat: Singles, begin: Weights) -> tuple[Weights, list[float]]:
        random = np.random.default_rng(self.seed)
        flat = flat[random.permutation(len(flat))]
        n_held = max(1, min(len(flat) // 10, 50_000))
        held, train = flat[:n_held], flat[n_held:]
        trainer = _Trainer(begin, self.learning_rate, self.momentum, self.cd_steps)
        best, best_error, errors, waited = begin, np.inf, list[float](), 0
        batch = min(self.batch, max(8, len(train) // 50))  # little data: smaller steps, not fewer
        starts = np.arange(0, len(train), batch)
        for _ in range(self.epochs):
            for first in random.permutation(starts):
                trainer.learn(train[first : first + batch])
            weights = trainer.weights()
            errors.append(float(CRBM.from_weights(weights).surprise(_as_windows(held)).mean()))
            if not np.isfinite(errors[-1]):
                raise TelemetryError("training diverged; scale the features or learn more slowly")
            waited = 0 if errors[-1] < best_error * (1 - _PROGRESS) else waited + 1
            if errors[-1] < best_error:
                best, best_error = weights, errors[-1]
            if waited >= self.patience:
                break
        return best, errors


class _Trainer:
    """Weights on their way, laid out so that a mini-batch takes few large products: `up` is
    [B | W], `down` is [A; W] and its columns are the visible units."""

    def __init__(self, begin: Weights, rate: float, momentum: float, steps: int) -> None:
        self.hidden, self.visible = begin.W.shape
        self.split = begin.A.shape[1]
        self.W = begin.W.astype(np.float32)
        self.history = np.concatenate([begin.B, begin.A]).astype(np.float32)  # what c does
        self.bias = np.concatenate([begin.h_bias, begin.v_bias]).astype(np.float32)
        self.rate, self.momentum, self.steps = np.float32(rate), np.float32(momentum), steps
        self.speed = [np.zeros_like(part) for part in (self.W, self.history, self.bias)]

    def learn(self, batch: Singles) -> None:
        """One step of gradient on a mini-batch."""
        hidden, scale = self.hidden, np.float32(1 / len(batch))
        c, v = batch[:, : self.split], batch[:, self.split :]
        given = c @ self.history.T
        given += self.bias
        given_h, given_v = given[:, :hidden], given[:, hidden:]
        h0 = _sigmoid(v @ self.W.T + given_h)
        v1, h1 = v, h0
        for _ in range(self.steps):
            v1 = h1 @ self.W + given_v
            h1 = _sigmoid(v1 @ self.W.T + given_h)
        change = np.concatenate([h0 - h1, v - v1], axis=1)
        gradients = (h0.T @ v - h1.T @ v1, change.T @ c, change.sum(axis=0))
        parts = (self.W, self.history, self.bias)
        for part, speed, gradient in zip(parts, self.speed, gradients, strict=True):
            speed *= self.momentum
            speed += (self.rate * scale) * gradient
            part += speed

    def weights(self) -> Weights:
        """A copy of where they are now."""
        hidden = self.hidden
        return Weights(
            self.W.copy(),
            self.history[hidden:].copy(),
            self.history[:hidden].copy(),
            self.bias[hidden:].copy(),
            self.bias[:hidden].copy(),
        )

    def __repr__(self) -> str:
        return f"_Trainer({self.hidden} hidden, {self.visible} visible)"


def _one_slice_at_a_time(
    slices: Singles, begin: Weights, rate: np.float32, epochs: int
) -> tuple[Weights, list[float]]:
    """Plain gradient steps on one slice after the other, as the published code does."""
    W, A, B = begin.W.copy(), begin.A.copy(), begin.B.copy()
    b_v, b_h = begin.v_bias.copy(), begin.h_bias.copy()
    split = A.shape[1]
    errors = []
    for _ in range(epochs):
        total = 0.0
        for row in slices:
            c, v = row[:split], row[split:]
            from_past = B @ c + b_h
            h0 = _sigmoid(W @ v + from_past)
            v1 = W.T @ h0 + A @ c + b_v
            h1 = _sigmoid(W @ v1 + from_past)
            missed, moved = v - v1, h0 - h1
            W += rate * (h0[:, None] * v - h1[:, None] * v1)
            A += rate * (missed[:, None] * c)
            B += rate * (moved[:, None] * c)
            b_v += rate * missed
            b_h += rate * moved
            total += float(missed @ missed) / len(v)
        errors.append(total / len(slices))
    return Weights(W, A, B, b_v, b_h), errors


def _old_normals(seed: int, count: int) -> Floats:
    """The normal numbers of the generator that NumPy had before 1.17: a Mersenne Twister seeded
    by Knuth's recurrence, and Marsaglia's polar method, the second number of a pair first."""
    key, word = np.empty(624, dtype=np.uint32), seed
    for at in range(624):
        key[at] = word
        word = (1812433253 * (word ^ (word >> 30)) + at + 1) & 0xFFFFFFFF
    twister = np.random.MT19937(0)
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    uniform = np.random.Generator(twister)
    normals: list[float] = []
    while len(normals) < count:
        x, y = 2 * uniform.random() - 1, 2 * uniform.random() - 1
        square = x * x + y * y
        if 0 < square < 1:
            scale = np.sqrt(-2 * np.log(square) / square)
            normals += [scale * y, scale * x]
    return np.array(normals[:count])


def _as_windows(flat: Singles) -> npt.NDArray[Any]:
    return flat[:, None, :]


def _sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """1 / (1 + exp(−x)) through tanh, which cannot overflow."""
    half: npt.NDArray[Any] = np.tanh(x * x.dtype.type(0.5))
    half *= x.dtype.type(0.5)
    half += x.dtype.type(0.5)
    return half
