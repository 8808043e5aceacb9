"""A worker of a torchrun job that loads PyTorch first, and then waits for the word to begin.

The guardian puts a copy of this file and of `torchrun_agent.py` into the run and starts it with
the Python of the job, so nothing of Presage is imported. The first argument is the file that says
with which environment to begin; the rest is the command.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.02


def main(word: Path, command: list[str]) -> None:
    """Load PyTorch, wait, and be the worker."""
    try:
        from torchrun_agent import python_script, run_python  # type: ignore[import-not-found]
    except ImportError:
        script = None  # another PyTorch, or none: the program itself loads what it needs
    else:
        script = python_script(command[0], command[1:])
        with suppress(Exception):  # a first optimizer imports it, which takes as long again
            import torch._dynamo  # noqa: F401
    sys.path.pop(0)  # the directory of this file, which is no place to import from
    Path(f"{word}.warm").touch()
    while not word.exists():
        time.sleep(_LOOK_S)
    os.environ.update(json.loads(word.read_bytes()))
    if script is None:
        os.execvp(command[0], command)
    run_python(*script)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
