"""The DLaaS experiment: PACK against SPREAD, gang against none, at three loads.

100 machines × 4 GPUs × 32 cores × 128 GB and 4,000 jobs of 1–8 learners with 1–4 GPUs each. Run it
with `python -m benchmarks.dlaas [--jobs 4000] [--seeds 3] [--json]`. Figures are means over the
seeds.
"""

from __future__ import annotations

import argparse
import json

from presage.reproduce.dlaas import rows as run_all


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run_all(options.jobs, options.seeds)
    if options.json:
        print(json.dumps({"dlaas": rows}))
        return
    print(
        f"{'load':>5} {'variant':<16} {'makespan':>9} {'waited':>7} {'queue':>7} {'wait':>7}",
        end="",
    )
    print(f" {'held GPU':>9} {'of all':>7} {'stuck':>6}")
    for row in rows:
        print(
            f"{row['load']:>5} {row['variant']:<16} {row['makespan_h']:>7.1f} h "
            f"{row['jobs_that_waited']:>7.0f} {row['mean_queue']:>7.1f} "
            f"{row['mean_wait_h']:>5.2f} h "
            f"{row['held_gpu_h']:>7.0f} h {row['held_share_pct']:>6.2f}% {row['unfinished']:>6.0f}"
        )


if __name__ == "__main__":
    main()
