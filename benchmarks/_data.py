"""Where the shared data is: `$PRESAGE_DATA`, else ../shared/data beside the checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def shared(name: str) -> Path:
    """A file of the shared data; ends the program with a clear line when it is not there."""
    root = Path(os.environ.get("PRESAGE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = root / name
    if not path.exists():
        sys.exit(f"{path} is missing: set PRESAGE_DATA to the folder of the shared data")
    return path
