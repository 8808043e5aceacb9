"""A small convolutional network learns to tell squares, discs and crosses apart; PyTorch, CPU.

Stopped at any moment, it continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from presage import job


def shapes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures of 16 × 16 pixels: 0 is a square, 1 a disc, 2 a cross."""
    source = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (count,), generator=source)
    size = torch.randint(4, 7, (count, 1, 1), generator=source)
    middle = torch.randint(6, 10, (2, count, 1, 1), generator=source)
    line = torch.arange(16)
    down = (line[None, :, None] - middle[0]).abs().expand(count, 16, 16)
    across = (line[None, None, :] - middle[1]).abs().expand(count, 16, 16)
    square = torch.maximum(down, across) <= size
    disc = down**2 + across**2 <= size**2
    cross = (torch.minimum(down, across) <= 1) & square
    picture = torch.where(label[:, None, None] == 0, square, disc)
    picture = torch.where(label[:, None, None] == 2, cross, picture).float()
    return (picture + 0.3 * torch.randn(picture.shape, generator=source))[:, None], label


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn to tell three shapes apart.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pictures", type=int, default=2048)
    options = parser.parse_args()

    torch.manual_seed(0)
    given = job.allocation()
    device = torch.device("cuda" if given.gpus and torch.cuda.is_available() else "cpu")
    picture, label = (part.to(device) for part in shapes(options.pictures, seed=0))
    test_picture, test_label = (part.to(device) for part in shapes(512, seed=1))
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 3),
    ).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    epoch = 0

    def save(directory: Path) -> None:
        state = {
            "network": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "epoch": epoch,
        }
        torch.save(state, directory / "training.pt")

    def load(directory: Path) -> None:
        nonlocal epoch
        file = directory / "training.pt"
        state = torch.load(file, map_location="cpu", weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        epoch = state["epoch"]

    job.checkpoint(save, load)
    if job.restore():
        print(f"continuing after epoch {epoch}", flush=True)
    while epoch < options.epochs:
        epoch += 1
        for rows in torch.randperm(len(label)).to(device).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(network(picture[rows]), label[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            score = network(test_picture)
            loss = functional.cross_entropy(score, test_label).item()
            right = (score.argmax(1) == test_label).float().mean().item()
        print(f"epoch {epoch}: loss {loss:.4f}, {right:.1%} right", flush=True)
        job.step(
            epoch=epoch, step=epoch, steps=options.epochs, metrics={"loss": loss, "right": right}
        )

    given.result_dir.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), given.result_dir / "network.pt")
    print(f"done: network.pt in {given.result_dir}")


if __name__ == "__main__":
    main()
