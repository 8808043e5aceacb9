"""A worker or server of a live job that has a link of its own: it enters the network namespace of
its rank (`_links`), then runs the script it is given, which meets the others there.

    python -m benchmarks._link_task PREFIX SCRIPT [ARGS]
"""

from __future__ import annotations

import os
import runpy
import sys

from benchmarks._links import address, enter_space


def main() -> None:
    prefix, script, *words = sys.argv[1:]
    rank, workers = int(os.environ["PRESAGE_RANK"]), int(os.environ["PRESAGE_WORKERS"])
    enter_space(f"{prefix}-{rank}")
    os.environ["MASTER_ADDR"] = address(0)
    os.environ["MASTER_PORT"] = str(20_000 + 64 * int(os.environ["PRESAGE_ATTEMPT"]) + workers)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
