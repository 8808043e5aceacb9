"""A training that can get into trouble, for `benchmarks.health_live`: `python _health_training.py
MODE STEPS STEP_S`. It loads nothing heavy, so that dozens run on two cores; what it does to get
into trouble is real."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import presage.job as job

mode, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
go_wrong = Path(sys.argv[4]) if len(sys.argv) > 4 else Path("/nonexistent")
"""The trouble begins when this file is there."""
chance = random.Random(os.environ.get("PRESAGE_JOB_ID", ""))
rank = int(os.environ.get("PRESAGE_RANK", "0"))
kept: list[bytearray] = []
state = {"step": 0}


def save(place: Path) -> None:
    """A checkpoint."""
    (place / "step").write_text(str(state["step"]))


def load(place: Path) -> None:
    """Go on from it."""
    state["step"] = int((place / "step").read_text())


def busy(seconds: float) -> None:
    """Keep a core busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def holds_gpu(busy_pct: int) -> None:
    """Be on the devices that were given, as the fake driver reads it."""
    for device in filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        with Path(os.environ["FAKE_GPUS"]).open("a") as users:
            users.write(f"{device} {os.getpid()} 4000 {busy_pct}\n")


def train_step(number: int, wrong: bool) -> float:
    """One step; its loss."""
    loss = 2.0 / (1 + number / 20) + chance.gauss(0, 0.03)
    slow = 2.5 if mode == "straggler" and wrong and rank == 1 else 1.0
    if mode == "crowded":
        busy(step_s * 0.9)
    else:
        busy(step_s * 0.05)
        time.sleep(slow * step_s * chance.uniform(0.8, 1.2))
    if mode == "healthy" and number % 40 == 0:
        time.sleep(8 * step_s)  # an evaluation
        (Path("checkpoint.bin")).write_bytes(os.urandom(1 << 20))
    if mode == "healthy" and number < 20:
        kept.append(bytearray(os.urandom(1 << 20)))  # what a program caches at its start
    if not wrong:
        return loss
    if mode == "leak":
        kept.append(bytearray(os.urandom(4 << 20)))
    elif mode == "spinning":
        while True:
            busy(1.0)
    elif mode == "hang":
        while True:
            time.sleep(1.0)
    elif mode == "nan":
        return float("nan")
    elif mode == "diverged":
        kept.append(bytearray(1))
        return loss * 1.6 ** min(30, len(kept))
    elif mode == "disk":
        with Path("fill.bin").open("ab") as file:
            file.write(os.urandom(2 << 20))
    return loss


def main() -> None:
    """Train."""
    job.checkpoint(save, load, every_s=5.0)
    if mode != "gpu_idle":
        holds_gpu(60)
    fresh = not job.restore()
    while state["step"] < steps:
        state["step"] += 1
        # A job that was started again is well: the trouble was that of its first run.
        loss = train_step(state["step"], fresh and go_wrong.exists())
        job.step(step=state["step"], steps=steps, metrics={"loss": loss})


def network() -> None:
    """Send to whoever listens at the address in the next argument, and report."""
    import socket

    host, port = sys.argv[5].split(":")
    for number in range(1, steps + 1):
        with socket.create_connection((host, int(port)), timeout=60) as link:
            for _ in range(8):
                link.sendall(b"x" * 8000)
                link.recv(1)
        time.sleep(step_s)
        job.step(step=number, steps=steps)


if __name__ == "__main__":
    if mode == "dies":
        name = os.environ["PRESAGE_JOB_ID"]
        until = time.monotonic() + steps * step_s
        while time.monotonic() < until:
            time.sleep(0.2)
            if (go_wrong / name).exists():
                sys.exit(3)
    elif mode == "network":
        network()
    else:
        main()
