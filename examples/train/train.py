"""A small network learns to tell two spirals apart; NumPy is all it needs.

Stopped at any moment, it continues from its last checkpoint and ends with the very same network.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from presage import job

Arrays = dict[str, np.ndarray[Any, Any]]


def spirals(count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Points on two spirals that wind around each other, and which of the two each is on."""
    label = rng.integers(0, 2, count)
    angle = rng.uniform(0.5, 3 * np.pi, count)
    radius = angle / (3 * np.pi)
    turned = angle + np.pi * label
    points = np.stack([radius * np.cos(turned), radius * np.sin(turned)], axis=1)
    return points + rng.normal(0, 0.02, points.shape), label


class Training:
    """Two hidden layers, Adam, and everything it takes to go on later."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.epoch = self.updates = 0
        sizes = [2, hidden, hidden, 1]
        self.weights: Arrays = {}
        for i, (ins, outs) in enumerate(pairwise(sizes)):
            self.weights[f"w{i}"] = rng.normal(0, np.sqrt(2 / ins), (ins, outs))
            self.weights[f"b{i}"] = np.zeros(outs)
        self.mean = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.square = {name: np.zeros_like(value) for name, value in self.weights.items()}

    def loss(self, points: Any, label: Any, learn: float = 0.0) -> tuple[float, float]:
        """Mean loss and share of right answers; with a rate, one update as well."""
        w = self.weights
        first = np.maximum(points @ w["w0"] + w["b0"], 0)
        second = np.maximum(first @ w["w1"] + w["b1"], 0)
        score = (second @ w["w2"] + w["b2"])[:, 0]
        chance = 1 / (1 + np.exp(-np.clip(score, -30, 30)))
        right = float(np.mean((score > 0) == label))
        loss = -float(np.mean(np.log(np.where(label == 1, chance, 1 - chance))))
        if learn:
            back = ((chance - label) / len(label))[:, None]
            into_second = (back @ w["w2"].T) * (second > 0)
            into_first = (into_second @ w["w1"].T) * (first > 0)
            slopes: Arrays = {}
            layers = [(points, into_first), (first, into_second), (second, back)]
            for i, (ins, slope) in enumerate(layers):
                slopes[f"w{i}"], slopes[f"b{i}"] = ins.T @ slope, slope.sum(0)
            self.update(slopes, learn)
        return loss, right

    def update(self, slopes: Arrays, rate: float) -> None:
        """One step of Adam."""
        self.updates += 1
        for name, slope in slopes.items():
            self.mean[name] += 0.1 * (slope - self.mean[name])
            self.square[name] += 0.001 * (slope**2 - self.square[name])
            mean = self.mean[name] / (1 - 0.9**self.updates)
            square = self.square[name] / (1 - 0.999**self.updates)
            self.weights[name] -= rate * mean / (np.sqrt(square) + 1e-8)

    def save(self, directory: Path) -> None:
        """Write all of it into an empty directory."""
        groups = {"weights": self.weights, "mean": self.mean, "square": self.square}
        arrays = {f"{g}.{name}": a for g, items in groups.items() for name, a in items.items()}
        np.savez(directory / "arrays.npz", allow_pickle=False, **arrays)
        state = {"epoch": self.epoch, "updates": self.updates}
        state["random"] = self.rng.bit_generator.state  # type: ignore[assignment]  # a mapping
        (directory / "state.json").write_text(json.dumps(state))

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        with np.load(directory / "arrays.npz", allow_pickle=False) as arrays:
            for name in self.weights:
                self.weights[name] = arrays[f"weights.{name}"]
                self.mean[name] = arrays[f"mean.{name}"]
                self.square[name] = arrays[f"square.{name}"]
        state = json.loads((directory / "state.json").read_text())
        self.epoch, self.updates = state["epoch"], state["updates"]
        self.rng.bit_generator.state = state["random"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn to tell two spirals apart.")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--points", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    points, label = spirals(options.points, rng)
    test = spirals(1024, np.random.default_rng(1))
    training = Training(options.hidden, rng)

    job.checkpoint(training.save, training.load)
    if job.restore():
        print(f"continuing after epoch {training.epoch}", flush=True)
    while training.epoch < options.epochs:
        training.epoch += 1
        for rows in np.array_split(rng.permutation(len(points)), len(points) // options.batch):
            training.loss(points[rows], label[rows], learn=0.003)
        loss, right = training.loss(*test)
        print(f"epoch {training.epoch}: loss {loss:.4f}, {right:.1%} right", flush=True)
        job.step(
            epoch=training.epoch,
            step=training.epoch,
            steps=options.epochs,
            metrics={"loss": loss, "right": right},
        )

    results = job.allocation().result_dir
    results.mkdir(parents=True, exist_ok=True)
    np.savez(results / "network.npz", allow_pickle=False, **training.weights)
    print(f"done: network.npz in {results}")


if __name__ == "__main__":
    main()
