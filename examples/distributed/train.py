"""Train any model of the zoo on several workers, with or without parameter servers.

With roles `worker` and `ps`, servers hold a part of the parameters each, in flat shards: workers
send slopes, servers take the step and send new parameters back, either when they have heard of
all workers (sync) or at once (`--async`). Without servers, workers share slopes in an all-reduce
(DistributedDataParallel). PyTorch; gloo on CPUs, nccl for an all-reduce on GPUs. Started by
`presage submit presage.yaml`; when the number of workers or servers changes, it goes on from its
checkpoint (servers then start with fresh momentum). Inputs are random, drawn once.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from presage import job
from presage.foresee.graph import zoo
from presage.foresee.graph.opgraph import InputSpec

PATIENCE = timedelta(seconds=120)
OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    model: str
    """A name of the zoo."""
    batch: int
    """Samples of one worker in a step."""
    optimizer: str = "sgd"
    input: str | None = None
    """One sample, like 3x64x64; the zoo's own if not given."""
    lr: float = 1e-4


class Training:
    """A model, its inputs, and one worker's part of a step: the slopes."""

    def __init__(self, workload: Workload, device: str = "cpu") -> None:
        entry = zoo.find(workload.model)
        specs = InputSpec.parse(workload.input) if workload.input else entry.inputs
        torch.manual_seed(0)
        self.model: nn.Module = entry.build().to(device).train()
        own = zip(specs, entry.inputs, strict=True)
        self.inputs = [_draw(spec, like.below, workload.batch).to(device) for spec, like in own]

    def slopes(self, model: nn.Module | None = None) -> float:
        """Forward and backward pass; the loss."""
        self.model.zero_grad(set_to_none=False)
        loss = _loss((model or self.model)(*self.inputs))
        loss.backward()
        return float(loss.detach())

    def flat(self) -> torch.Tensor:
        """All parameters in one row."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def flat_slopes(self) -> torch.Tensor:
        """All slopes in one row."""
        rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return torch.cat([row.reshape(-1) for row in rows])

    def take(self, flat: torch.Tensor) -> None:
        """Take over parameters from a row."""
        at = 0
        with torch.no_grad():
            for p in self.parameters:
                p.copy_(flat[at : at + p.numel()].view_as(p))
                at += p.numel()

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]


def _draw(spec: InputSpec, below: int, batch: int) -> torch.Tensor:
    if spec.dtype.startswith("int"):
        return torch.randint(below, (batch, *spec.shape), dtype=getattr(torch, spec.dtype))
    return torch.rand(batch, *spec.shape, dtype=getattr(torch, spec.dtype))


def _loss(out: Any) -> torch.Tensor:
    """The mean square of all that comes out."""
    if isinstance(out, torch.Tensor):
        return out.float().square().mean()
    parts = out.values() if isinstance(out, dict) else out
    kept = [part for part in parts if isinstance(part, torch.Tensor) and part.is_floating_point()]
    return torch.stack([part.float().square().mean() for part in kept]).sum()


def cuts(total: int, parts: int) -> list[slice]:
    """Equal shards of a row of parameters."""
    size = math.ceil(total / parts)
    return [slice(min(at * size, total), min((at + 1) * size, total)) for at in range(parts)]


def all_reduce(
    workload: Workload,
    training: Training,
    workers: int,
    steps: int | None,
    done: Callable[[], Any],
) -> None:
    """One worker of an all-reduce; without `steps`, until it is ended."""
    model = training.model
    if workers > 1:
        # branches that a loss does not reach have no slopes
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = OPTIMIZERS[workload.optimizer](training.parameters, workload.lr)
    while steps is None or steps > 0:
        training.slopes(model)
        optimizer.step()
        done()
        steps = None if steps is None else steps - 1


def worker(
    training: Training, servers: Sequence[int], steps: int | None, done: Callable[[], Any]
) -> None:
    """One worker of a parameter server: slopes to every server, parameters back. The last number
    of a message says whether another one follows."""
    flat = training.flat()
    shards = cuts(flat.numel(), len(servers))
    more = True
    while more:
        steps = None if steps is None else steps - 1
        more = steps is None or steps > 0
        training.slopes()
        slopes = training.flat_slopes()
        mark = torch.tensor([1.0 if more else 0.0])
        parts = [torch.cat([slopes[cut], mark]) for cut in shards]
        sent = [dist.isend(part, to) for part, to in zip(parts, servers, strict=True)]
        new = [flat[cut] for cut in shards]
        heard = [dist.irecv(part, to) for part, to in zip(new, servers, strict=True)]
        for work in (*sent, *heard):
            work.wait()
        training.take(flat)
        done()


def server(
    workload: Workload,
    shard: torch.Tensor,
    workers: Sequence[int],
    asynchronous: bool,
    done: Callable[[], Any],
) -> None:
    """One server, until no worker has anything more to say. `done` is called when all workers
    were heard of once more."""
    held = nn.Parameter(shard)
    optimizer = OPTIMIZERS[workload.optimizer]([held], workload.lr)
    message = torch.empty(shard.numel() + 1)
    together = torch.zeros_like(shard)
    waiting: list[int] = []
    active, counts, rounds = set(workers), dict.fromkeys(workers, 0), 0
    while active:
        sender = dist.recv(message)
        counts[sender] += 1
        last = float(message[-1]) == 0.0
        if asynchronous:
            _step(optimizer, held, message[:-1])
            dist.send(held.detach(), sender)
        else:
            together += message[:-1]
            waiting.append(sender)
            if len(waiting) == len(active):
                _step(optimizer, held, together / len(waiting))
                for work in [dist.isend(held.detach(), to) for to in waiting]:
                    work.wait()
                together.zero_()
                waiting.clear()
                active = active if not last else set()  # all workers make as many steps
        if asynchronous and last:
            active.discard(sender)
        while rounds < min(counts.values()):
            rounds += 1
            done()


def _step(optimizer: torch.optim.Optimizer, held: nn.Parameter, slopes: torch.Tensor) -> None:
    held.grad = slopes
    optimizer.step()


def run_task(
    workload: Workload,
    rank: int,
    roles: Sequence[str],
    *,
    asynchronous: bool = False,
    steps: int | None = None,
    done: Callable[[], Any] = lambda: None,
    training: Training | None = None,
) -> None:
    """The part of one worker or server; `roles` has that of every rank. The process group is
    there already."""
    training = training or Training(workload)
    servers = [at for at, role in enumerate(roles) if role == "ps"]
    workers = [at for at, role in enumerate(roles) if role != "ps"]
    if not servers:
        all_reduce(workload, training, len(workers), steps, done)
    elif rank in servers:
        flat = training.flat()
        shard = flat[cuts(flat.numel(), len(servers))[servers.index(rank)]].clone()
        server(workload, shard, workers, asynchronous, done)
    else:
        worker(training, servers, steps, done)


def _meet(given: job.Allocation) -> list[str]:
    """Join the group of this job; the role of every rank. Workers on one machine meet through a
    file beside the checkpoints, others through MASTER_ADDR and MASTER_PORT."""
    store: Any
    if "MASTER_ADDR" in os.environ:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, given.workers, given.rank == 0, PATIENCE)
    else:
        given.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        name = f".meeting-{given.job_id}-{given.attempt}-{given.workers}"
        store = dist.FileStore(str(given.checkpoint_dir / name), given.workers)
    store.set(f"role-{given.rank}", given.role)
    roles = [store.get(f"role-{rank}").decode() for rank in range(given.workers)]
    on_gpus = torch.cuda.is_available() and "ps" not in roles
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        store=store,
        rank=given.rank,
        world_size=given.workers,
        timeout=PATIENCE,
    )
    return roles


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model of the zoo on several workers.")
    parser.add_argument("--model", default="squeezenet1-1")
    parser.add_argument("--input", default="3x64x64", help="one sample; empty: the zoo's own")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--steps", type=int, default=50, help="several workers divide them")
    parser.add_argument("--async", dest="asynchronous", action="store_true")
    options = parser.parse_args()
    given = job.allocation()
    workload = Workload(options.model, options.batch, options.optimizer, options.input or None)
    torch.set_num_threads(1)
    roles = _meet(given) if given.workers > 1 else [given.role]
    gpu = torch.cuda.is_available() and "ps" not in roles
    training = Training(workload, "cuda" if gpu else "cpu")
    made = [0]
    at_once = max(1, sum(role != "ps" for role in roles))

    def save(directory: Path) -> None:
        torch.save({"model": training.model.state_dict(), "made": made[0]}, directory / "part.pt")

    def load(directory: Path) -> None:
        state = torch.load(directory / "part.pt", weights_only=True)
        training.model.load_state_dict(state["model"])
        made[0] = state["made"]

    def done() -> None:
        made[0] = min(made[0] + at_once, options.steps)
        job.step(step=made[0], steps=options.steps)

    job.checkpoint(save, load)
    job.restore()
    print(f"{given.role} {given.rank} of {given.workers}, after step {made[0]}", flush=True)
    if made[0] < options.steps:
        left = math.ceil((options.steps - made[0]) / at_once)
        run_task(
            workload,
            given.rank,
            roles,
            asynchronous=options.asynchronous,
            steps=left,
            done=done,
            training=training,
        )
    print(f"done after step {made[0]}")
    if given.workers > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
