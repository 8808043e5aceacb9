"""Gangs on real Slurms whose controller and nodes' daemons are killed 50 times.

    python -m benchmarks.slurm_gangs [--gangs 40] [--kills 50] [--version 26.05] [--mode jobs]

Wanted: no half-started gang, nothing started twice, nothing lost, nothing left.
"""

from __future__ import annotations

import argparse
import sys

from tests.executors.slurm_fire import gangs_under_fire
from tests.executors.slurm_kit import SlurmWorld
from tests.slurm_cluster import VERSIONS, missing_engine


def main() -> None:
    """Print a line for each version and mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gangs", type=int, default=40)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--version", choices=VERSIONS)
    parser.add_argument("--mode", choices=("jobs", "pilot"))
    asked = parser.parse_args()
    bad = False
    print("version mode  gangs attempts kills                        half twice lost left seconds")
    for version in [asked.version] if asked.version else VERSIONS:
        if reason := missing_engine(version):
            print(f"{version}: {reason}")
            continue
        for mode in [asked.mode] if asked.mode else ("jobs", "pilot"):
            world = SlurmWorld(version, mode)
            try:
                fire = gangs_under_fire(
                    world, gangs=asked.gangs, kills=asked.kills, seed=1, within_s=1800.0
                )
            finally:
                world.close()
            kills = ", ".join(f"{count} {what}" for what, count in sorted(fire.kills.items()))
            held = [fire.half_started, fire.started_twice, fire.unfinished, fire.left]
            counts = " ".join(f"{len(found):4}" for found in held)
            print(
                f"{version:7} {mode:5} {fire.gangs:5} {fire.attempts:8} {kills:28} {counts} "
                f"{fire.seconds:7.0f}",
                flush=True,
            )
            for line in fire.words:
                print(f"  {line}")
            bad = bad or not fire.good
    sys.exit(bad)


if __name__ == "__main__":
    main()
