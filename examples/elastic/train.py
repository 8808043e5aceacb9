"""A small network learns a wavy surface, with as many workers as there happen to be.

All workers together take the same batch in each step, whatever their number, so the loss does not
show where the number changed. PyTorch, CPU; started by `presage submit presage.yaml`, or alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from presage import job

BATCH = 64
STEPS_PER_EPOCH = 50


def samples(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step: the same for every number of workers."""
    source = torch.Generator().manual_seed(step)
    x = torch.rand(BATCH, 2, generator=source) * 4 - 2
    return x, torch.sin(2 * x[:, :1]) * torch.cos(x[:, 1:])


class Training:
    """A network, its momentum, and how far it is."""

    def __init__(self, lr: float) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.speed = {name: torch.zeros_like(p) for name, p in self.network.named_parameters()}
        self.lr = lr
        self.step = 0

    def one_step(self, rank: int, workers: int) -> float:
        """This worker's part of the batch, then the sum of everybody's slopes; the loss."""
        self.step += 1
        x, y = (part[rank::workers] for part in samples(self.step))
        self.network.zero_grad()
        loss = (self.network(x) - y).square().sum() / BATCH
        loss.backward()
        slopes = [p.grad for p in self.network.parameters() if p.grad is not None]
        together = torch.cat([slope.flatten() for slope in slopes] + [loss.detach().reshape(1)])
        if workers > 1:
            dist.all_reduce(together)
        at = 0
        with torch.no_grad():
            for name, p in self.network.named_parameters():
                slope = together[at : at + p.numel()].view_as(p)
                self.speed[name].mul_(0.9).add_(slope)
                p.sub_(self.lr * self.speed[name])
                at += p.numel()
        return float(together[-1])

    def save(self, directory: Path) -> None:
        """Write all of it into an empty directory."""
        state = {"network": self.network.state_dict(), "speed": self.speed, "step": self.step}
        torch.save(state, directory / "training.pt")

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        state = torch.load(directory / "training.pt", weights_only=True)
        self.network.load_state_dict(state["network"])
        self.speed, self.step = state["speed"], state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn a surface with any number of workers.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait in each step")
    options = parser.parse_args()

    given = job.allocation()
    if given.workers > 1:
        dist.init_process_group("gloo")
    share = job.scaled(BATCH, 0.05, rule="fixed")
    training = Training(share.lr)
    job.checkpoint(training.save, training.load)
    job.on_resize(lambda now, then: print(f"from {now} to {then} workers after {training.step}"))
    job.restore()
    print(f"worker {given.rank} of {given.workers}: {share.batch} samples, after {training.step}")
    given.result_dir.mkdir(parents=True, exist_ok=True)
    with (given.result_dir / "curve.jsonl").open("a") as curve:
        while training.step < options.steps:
            loss = training.one_step(given.rank, given.workers)
            if given.rank == 0:
                point = {"step": training.step, "workers": given.workers, "loss": loss}
                print(json.dumps({**point, "at": time.time()}), file=curve, flush=True)
            time.sleep(options.pace)
            job.step(
                epoch=training.step // STEPS_PER_EPOCH,
                step=training.step,
                steps=options.steps,
                metrics={"loss": loss, "workers": given.workers},
            )
    print(f"done after step {training.step}")


if __name__ == "__main__":
    main()
