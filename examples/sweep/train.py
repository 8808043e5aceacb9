"""A member of a sweep: fits a line by gradient descent with its own learning rate and seed, and
reports the loss. It runs without Presage as well."""

from __future__ import annotations

import random

from presage import job

STEPS = 40

settings = job.params(lr=0.1, seed=0)
lr, rng = float(settings["lr"]), random.Random(int(settings["seed"]))
points = [(x, 3.0 * x + 1.0 + rng.gauss(0.0, 0.1)) for x in (k / 20 for k in range(20))]
slope = offset = 0.0
for step in range(1, STEPS + 1):
    errors = [(slope * x + offset - y, x) for x, y in points]
    slope -= lr * sum(2 * error * x for error, x in errors) / len(errors)
    offset -= lr * sum(2 * error for error, _ in errors) / len(errors)
    loss = sum(error * error for error, _ in errors) / len(errors)
    job.step(step=step, steps=STEPS, metrics={"val_loss": min(loss, 1e9)})
print(f"lr {lr:g}: loss {loss:.4f}")
