"""Whether the guilty pod is named, and the kind of fault, in Nezha's injected faults.

Only faults whose previous fault was on another pod, for the window before any other is itself
contaminated. The fallback for faults without a rise of CPU was chosen on those others, but the 40
had been looked at metric by metric before. The placebo is the window 330 s before. The kind
is told by the guilty pod's changes, services left out. "Traces at all" bounds the first: what an
observer who knew all quiet minutes of the day would see. Needs the shared data.

    python -m benchmarks.health_causes [--json]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from benchmarks._data import shared
from benchmarks._health_traces import quiet_pods
from presage.learn.evaluate import family_out
from presage.observe.health.causes import changes_of, find_causes
from presage.observe.health.kinds import FaultKinds, Method
from presage.telemetry.readers import read_telemetry
from presage.telemetry.series import Series

WINDOW_S, PLACEBO_S = 180.0, 330.0
FOLDS, WAYS = 10, 6


def pods_by_day() -> dict[str, list[Series]]:
    """The pods of each day."""
    table = pl.read_parquet(shared("faults/nezha_pod_metrics_1min.parquet"))
    found = {}
    for (day,), rows in table.group_by("day", maintain_order=True):
        rows = rows.rename({"PodName": "pod", "TimeStamp": "timestamp"}).drop("day")
        found[str(day)] = [pod.measured() for pod in read_telemetry(rows)]
    return found


def faults() -> list[dict[str, Any]]:
    """Each with whether the previous one, of that day, was elsewhere."""
    table = pl.read_parquet(shared("faults/nezha_injected_faults.parquet")).sort("inject_ts_utc")
    rows = list(table.iter_rows(named=True))
    for at, row in enumerate(rows):
        before = rows[at - 1] if at else {"inject_pod": None, "day": None}
        same = (before["inject_pod"], before["day"]) == (row["inject_pod"], row["day"])
        row["clean"] = not same
    return rows


def _first(pods: list[Series], begin: float, guilty: str) -> bool | None:
    causes = find_causes(pods, begin, begin + WINDOW_S).causes
    return bool(causes) and causes[0].name == guilty


def guilty_pods(pods: dict[str, list[Series]]) -> dict[str, Any]:
    """Hit@1 by sort of fault, and of the placebo."""
    hits: dict[str, list[bool]] = {}
    chance = []
    for row in faults():
        if not row["clean"]:
            continue
        here, begin = pods[row["day"]], float(row["inject_ts_utc"])
        part = "cpu" if row["inject_type"].startswith("cpu") else "others"
        for title, at in ((part, begin), ("placebo", begin - PLACEBO_S)):
            there = any(((pod.times >= at) & (pod.times < at + WINDOW_S)).any() for pod in here)
            before = any(((pod.times >= at - 300) & (pod.times < at - 60)).any() for pod in here)
            if there and before:
                hits.setdefault(title, []).append(bool(_first(here, at, row["inject_pod"])))
        chance.append(1 / len(here))
    found = {
        title: {"n": len(each), "hit@1": float(np.mean(each))} for title, each in hits.items()
    }
    return {**found, "chance": {"n": len(chance), "hit@1": float(np.mean(chance))}}


def traces(pods: dict[str, list[Series]]) -> dict[str, Any]:
    """Of the same faults and placebos: at how many the guilty pod went further than in 99 of 100
    quiet windows of its day, and at how many no other pod strayed as far from its own."""
    rows = faults()
    found: dict[str, list[tuple[bool, bool]]] = {}
    for day, here in pods.items():
        begun = [float(row["inject_ts_utc"]) for row in rows if row["day"] == day]
        quiet = dict(zip([pod.pod for pod in here], quiet_pods(here, begun), strict=True))
        for row in rows:
            if row["day"] != day or not row["clean"]:
                continue
            part = "cpu" if row["inject_type"].startswith("cpu") else "others"
            begin = float(row["inject_ts_utc"])
            for title, at in ((part, begin), ("placebo", begin - PLACEBO_S)):
                chances = {name: one.chance(at) for name, one in quiet.items()}
                known = {name: (one[0], -one[1]) for name, one in chances.items() if one}
                guilty = known.get(row["inject_pod"], (1.0, 0.0))
                first = bool(known) and min(known.values()) == guilty
                found.setdefault(title, []).append((guilty[0] <= 0.01, first))
    return {
        title: {
            "n": len(each),
            "beyond 99 %": sum(beyond for beyond, _ in each),
            "first": sum(first for _, first in each),
        }
        for title, each in found.items()
    }


def kinds(pods: dict[str, list[Series]]) -> dict[str, Any]:
    """Share of faults whose kind is named, services left out, over ways to put services into
    folds; of the faults that are clean, too. All faults are learned from."""
    rows, truth, service, clean = [], [], [], []
    for row in faults():
        begin = float(row["inject_ts_utc"])
        moved = changes_of(pods[row["day"]], begin, begin + WINDOW_S)
        names = [pod.pod for pod in pods[row["day"]]]
        if row["inject_pod"] in names:
            rows.append(moved[names.index(row["inject_pod"])])
            truth.append(row["inject_type"])
            service.append(re.sub(r"-[a-z0-9]+-[a-z0-9]+$", "", row["inject_pod"]))
            clean.append(row["clean"])
    found: dict[str, Any] = {"n": len(truth)}
    found["majority"] = max(truth.count(each) for each in set(truth)) / len(truth)
    methods: tuple[Method, ...] = ("both", "tree", "network")
    for method in methods:
        shares, of_clean = [], []
        for seed in range(WAYS):
            right = np.zeros(len(truth), dtype=bool)
            for train, test in family_out(np.array(service), FOLDS, seed=seed):
                learned = [rows[at] for at in train]
                model = FaultKinds(method).fit(learned, [truth[at] for at in train])
                right[test] = [model.rank(rows[at])[0].kind == truth[at] for at in test]
            shares.append(float(right.mean()))
            of_clean.append(float(right[clean].mean()))
        found[method] = {"first way": shares[0], "mean": float(np.mean(shares))}
        found[method] |= {"least": min(shares), "most": max(shares)}
        found[method] |= {"mean of the clean": float(np.mean(of_clean))}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print both, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    pods = pods_by_day()
    found = {
        "guilty pod": guilty_pods(pods),
        "traces at all": traces(pods),
        "kind of fault": kinds(pods),
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, values in found.items():
        print(title)
        for name, value in values.items():
            print(f"  {name:10} {value}")


if __name__ == "__main__":
    main()
