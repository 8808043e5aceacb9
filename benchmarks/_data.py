"""Where the shared data is: `$PRESAGE_DATA`, else ../shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_dir", "shared"]


def data_dir() -> Path:
    """The folder of the shared data; ends the program with a clear line when there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for place in (os.environ.get("PRESAGE_DATA"), beside):
        if place and Path(place).is_dir():
            return Path(place)
    raise SystemExit("no shared data: set PRESAGE_DATA, or put it in ../shared/data")


def shared(name: str) -> Path:
    """A file of it."""
    return data_dir() / name
