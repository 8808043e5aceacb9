"""One Philly week on 30×8 GPUs, job by job against the outcome of Lucid's simulator.

`python -m benchmarks.peer_week [--json]`. Non-preemptive policies must give every job the same
start and end; the preemptive ones (restart cost 40 s) are compared by average JCT.
"""

from __future__ import annotations

import argparse
import json

import polars as pl

from benchmarks._data import shared
from presage.policy import registry
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import read_trace
from presage.sim.world import WorldRules

FILE = "peers/lucid_sim_philly_week_240gpu.parquet"
RESTART_COST_S = {"fifo": 0.0, "sjf": 0.0, "qssf": 0.0, "srtf": 40.0, "tiresias": 40.0}


def compare(policy: str) -> dict[str, float | str]:
    """One policy: ours, the peer's, and how many jobs start or end at another second."""
    path = shared(FILE)
    peer = pl.read_parquet(path)
    rules = WorldRules(restart_cost_s=RESTART_COST_S[policy])
    result = simulate(
        read_trace(path), read_cluster("30x8"), registry.build(policy), name=policy, rules=rules
    )
    ours = result.jobs.with_columns(pl.col("job_id").cast(pl.Int64))
    both = peer.join(ours, on="job_id")
    differ = pl.col(f"{policy}_start_time") != pl.col("start_s")
    if not RESTART_COST_S[policy]:  # the peer's preemptive policies end every job a second late
        differ |= pl.col(f"{policy}_end_time") != pl.col("end_s")
    jct, queue = both["jct_s"].mean(), both["wait_s"].mean()
    peer_jct, peer_queue = both[f"{policy}_jct"].mean(), both[f"{policy}_queue"].mean()
    assert isinstance(jct, float)
    assert isinstance(peer_jct, float)
    assert isinstance(queue, float)
    assert isinstance(peer_queue, float)
    return {
        "policy": policy,
        "jobs": both.height,
        "other_second": both.filter(differ).height,
        "jct_s": jct,
        "peer_jct_s": peer_jct,
        "jct_off_pct": 100 * (jct / peer_jct - 1),
        "queue_s": queue,
        "peer_queue_s": peer_queue,
        "cpu_s": result.cpu_s,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = [compare(policy) for policy in RESTART_COST_S]
    if parser.parse_args().json:
        print(json.dumps({"peer_week": rows}))
        return
    print(f"{'policy':<9} {'other second':>14} {'JCT s':>9} {'peer':>9} {'off':>8} {'CPU s':>7}")
    for row in rows:
        print(
            f"{row['policy']:<9} {row['other_second']:>6} of {row['jobs']:>4} "
            f"{row['jct_s']:>9.0f} "
            f"{row['peer_jct_s']:>9.0f} {row['jct_off_pct']:>+7.2f}% {row['cpu_s']:>7.3f}"
        )


if __name__ == "__main__":
    main()
