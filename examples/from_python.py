"""What `import presage` gives, without a server: foresee, simulate, compare, telemetry."""

import math
from pathlib import Path

import polars as pl

import presage

HERE = Path(__file__).parent


def foresee() -> None:
    p = presage.predict("zoo:resnet50", batch=64, gpu="a100-40g")
    print(p.name, "fits" if p.fits else "does not fit")
    assert p.memory_mib.p10 <= p.memory_mib.p50 <= p.memory_mib.p90
    assert p.step_ms.p90 > 0
    assert 0 <= p.gpu_util_pct.p10 <= 100


def simulate() -> None:
    r = presage.simulate(HERE / "jobs.csv", cluster=HERE / "cluster.yaml", policy="srtf")
    print(f"average JCT {r.summary['avg_jct_s']:,.0f} s under {r.policy}")
    longest = r.jobs.sort("wait_s", descending=True, nulls_last=True)["job_id"][0]
    print(f"{longest} waited longest")


def compare() -> None:
    trace = presage.make_trace("diurnal", 500, cluster="8x8", load=0.9)
    c = presage.compare(trace, cluster="8x8", policies=["fifo", "sjf", "backfill"])
    best = c.table.sort("avg_jct_s")["policy"][0]
    print(f"{best} has the shortest JCT; fifo finished {c['fifo'].summary['finished']} jobs")
    few = trace.jobs.filter(pl.col("gpu_milli") <= 2000)
    print(f"{few.height} of them ask for two GPUs at most")
    presage.simulate(few, cluster="8x8")  # a data frame is a trace, too


def telemetry() -> None:
    rows = [
        {"pod": f"p{pod}", "time": 15 * i, "cpu_cores": 3.0 if math.sin(i / 6 + pod) > 0 else 0.2}
        for pod in range(6)
        for i in range(240)
    ]
    measured = pl.DataFrame(rows)
    found = presage.phases(measured, k=2)
    print(found.table.select("phase", "cpu_mean").with_columns(pl.all().round(1)).rows())
    sized = presage.rightsize(measured, ["adaptive", "vpa"], window="5m")
    print(sized.to_polars().select("policy", pl.col("alloc_over_use").round(1)).rows())


if __name__ == "__main__":
    foresee()
    simulate()
    compare()
    telemetry()
