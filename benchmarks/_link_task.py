"""A worker or server of a live job that has a link of its own: it enters the network namespace of
its rank (`_links`), then runs the script it is given, which meets the others there.

    python -m benchmarks._link_task PREFIX SCRIPT [ARGS]

With LINK_TASK_NICE in its environment it goes before what else the machine does. The nice value of
a process counts within its session alone where sessions are scheduled as groups (autogroup), and
every task has a session of its own; so it is the group that gets it.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks._links import address, enter_space


def main() -> None:
    prefix, script, *words = sys.argv[1:]
    rank, workers = int(os.environ["PRESAGE_RANK"]), int(os.environ["PRESAGE_WORKERS"])
    if "LINK_TASK_NICE" in os.environ:
        with suppress(OSError):  # sessions are no groups here
            Path("/proc/self/autogroup").write_text(os.environ["LINK_TASK_NICE"])
        os.setpriority(os.PRIO_PROCESS, 0, int(os.environ["LINK_TASK_NICE"]))
    enter_space(f"{prefix}-{rank}")
    os.environ["MASTER_ADDR"] = address(0)
    os.environ["MASTER_PORT"] = str(20_000 + 64 * int(os.environ["PRESAGE_ATTEMPT"]) + workers)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
