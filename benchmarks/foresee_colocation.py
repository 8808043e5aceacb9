"""Speed of jobs that share a GPU, foreseen from each alone: splits by pair and by model.

Figures are the mean absolute error of the normalised speed on rows that the model was not fitted
on, beside the best constant and a monotone fit on summed solo utilization (or, where utilization
was not measured, on the summed share of peak FLOP/s). By pair: no unordered pair of (model, batch)
is in training and test. By configuration, by model: nothing of a test configuration or model is in
training, on either side of a pair. From graphs: nothing of a job is known but the utilization that
its graph foretells, by what is shipped. Elsewhere: fitted on Gavel, as what is shipped, and asked
of Lucid's models on Lucid's GPU. The F1 of pairs that cannot share flatters: the memory of the
jobs was worked out a second time after those pairs were seen. Needs the shared data and
scikit-learn.

    python -m benchmarks.foresee_colocation [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.isotonic import IsotonicRegression

from benchmarks._data import data_dir
from benchmarks._tables import print_table
from benchmarks._turns import Turns, TurnsEstimator, foreseen_turns, turns_of
from presage.foresee._colocation import row as job_row
from presage.foresee._realjobs import read_lucid_jobs
from presage.foresee.estimators import job_utilization
from presage.foresee.gpus import find
from presage.foresee.interference import (
    FEATURES,
    InterferenceEstimator,
    JobAlone,
    MemoryLimit,
    Pairs,
    read_gavel,
    read_lucid,
)
from presage.learn.evaluate import coverage, f1, family_out, mae

Split = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
TARGETS = {"pair": 0.06, "model": 0.09, "configuration": 0.06}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="few trees, no split by configuration"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(argv)
    lucid, gavel = read_lucid(data_dir()), read_gavel(data_dir())
    able = gavel.take(~gavel.cannot)
    turns = {"Gavel": turns_of(data_dir(), able)}
    rows = []
    graphs = from_graphs(lucid)
    for name, pairs in (("Lucid", lucid), ("Lucid, from graphs", graphs), ("Gavel", able)):
        load = "summed share of peak FLOP/s" if name == "Gavel" else "summed utilization"
        splits = {"pair": by_pair(pairs), "model": leave_out(pairs.models)}
        if not options.quick:
            splits["configuration"] = leave_out(pairs.configurations)
        for kind, parts in splits.items():
            trees = 30 if options.quick else 150
            rows.append(
                compare(name, kind, pairs, parts, FEATURES.index(load), trees, turns.get(name))
            )
    limits = {"pair": by_pair(gavel), "configuration": leave_out(gavel.configurations)}
    sharing = [cannot_share(kind, gavel, parts) for kind, parts in limits.items()]
    where = where_it_errs(able, turns["Gavel"], foreseen_turns(able))
    elsewhere = fitted_elsewhere(able, lucid, 30 if options.quick else 150)
    if options.json:
        told = {
            "speed": rows,
            "elsewhere": elsewhere,
            "cannot_share": sharing,
            "gavel_by_model": where,
        }
        print(json.dumps(told, allow_nan=False))
    else:
        for n, table in enumerate((rows, elsewhere, sharing, where)):
            print(end="\n" if n else "")
            print_table(table)
    return 0


def by_pair(pairs: Pairs) -> list[Split]:
    """Five folds without a common unordered pair of configurations."""
    rows = np.arange(len(pairs.speed))
    return [
        (np.isin(rows, train), np.isin(rows, test)) for train, test in family_out(pairs.pair, 5, 0)
    ]


def leave_out(names: npt.NDArray[np.str_]) -> list[Split]:
    """For each name, the rows without it and the rows with it on either side."""
    found = [np.any(names == name, axis=1) for name in np.unique(names)]
    return [(~with_it, with_it) for with_it in found]


def compare(
    data: str,
    kind: str,
    pairs: Pairs,
    splits: Sequence[Split],
    load: int,
    trees: int,
    turns: npt.NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Errors over all test rows of the splits; by turns too, where those are known."""
    truth, inside = [], []
    guesses: dict[str, list[npt.NDArray[np.float64]]] = {}
    for train, test in splits:
        fitted = InterferenceEstimator(trees=trees).fit(
            pairs.X[train], pairs.speed[train], pairs.models[train]
        )
        interval = fitted.predict_interval(pairs.X[test])
        monotone = IsotonicRegression(increasing=False, out_of_bounds="clip")
        monotone.fit(pairs.X[train, load], pairs.speed[train])
        truth.append(pairs.speed[test])
        inside.append(interval)
        found = {
            "presage": interval[:, 1],
            "monotone": monotone.predict(pairs.X[test, load]),
            "constant": np.full(test.sum(), np.median(pairs.speed[train])),
        }
        if turns is not None:
            by_turns = TurnsEstimator(trees).fit(pairs.take(train), turns[train])
            found["by turns"] = by_turns.predict_interval(pairs.take(test), turns[test])[:, 1]
        for name, guess in found.items():
            guesses.setdefault(name, []).append(guess)
        print(f"{data}, {kind}: {len(truth)} of {len(splits)}", file=sys.stderr)
    actual = np.concatenate(truth)
    errors: dict[str, float | None] = {"by turns": None}
    errors |= {name: round(mae(actual, np.concatenate(of)), 4) for name, of in guesses.items()}
    held = round(coverage(actual, np.concatenate(inside)), 3)
    target = 0.08 if "graphs" in data else TARGETS.get(kind)
    head = {"data": data, "split by": kind, "rows": len(actual), "target": target}
    return {**head, **errors, "80 % holds": held}


def fitted_elsewhere(known: Pairs, new: Pairs, trees: int) -> list[dict[str, Any]]:
    """Errors on models and a GPU that nothing was fitted on: by what is shipped, from what was
    measured of each job alone and from its graph, and by trees and a constant."""
    fitted = InterferenceEstimator(trees).fit(known.X, known.speed, known.models)
    busy = [FEATURES.index(f"{whose} utilization") for whose in ("own", "other's")]
    profiles = [tuple(JobAlone(util_pct=100 * u) for u in pair) for pair in new.X[:, busy]]
    rows = []
    for source, jobs in (("profiles", profiles), ("graphs", graph_jobs())):
        shipped = [fitted.speed(own, [other], find("rtx3090")) for own, other in jobs]
        interval = np.array([[one.p10, one.p50, one.p90] for one in shipped])
        guesses = {
            "presage": interval[:, 1],
            "trees": fitted.predict(new.X),
            "0.9": np.full(len(new.speed), 0.9),
            "constant": np.full(len(new.speed), np.median(known.speed)),
        }
        errors = {name: round(mae(new.speed, guess), 4) for name, guess in guesses.items()}
        head: dict[str, Any] = {"fitted on": "Gavel", "asked of": "Lucid", "from": source}
        held = round(coverage(new.speed, interval), 3)
        rows.append({**head, "rows": len(new.speed), **errors, "80 % holds": held})
    return rows


def graph_jobs() -> list[tuple[JobAlone, JobAlone]]:
    """The two jobs of each of Lucid's rows, with utilization as it is foreseen from graphs."""
    names = ("model", "dataset", "batchsize", "amp")
    alone = pl.read_parquet(data_dir() / "profiles/lucid_single_rtx3090.parquet")
    seen = job_utilization().predict_interval(read_lucid_jobs(data_dir()).X)
    known = {
        tuple(row[name] for name in names): JobAlone(
            util_pct=middle, util_low_pct=low, util_high_pct=high
        )
        for row, (low, middle, high) in zip(alone.to_dicts(), seen.tolist(), strict=True)
    }
    pairs = pl.read_parquet(data_dir() / "colocation/lucid_pairs_rtx3090.parquet")
    jobs = []
    for pair in pairs.to_dicts():
        one, two = (known[tuple(pair[f"{name}{side}"] for name in names)] for side in (1, 2))
        jobs += [(one, two), (two, one)]
    return jobs


def from_graphs(pairs: Pairs) -> Pairs:
    """Lucid's pairs with nothing but what graphs tell of each job."""
    seen = np.stack([job_row(own, other, find("rtx3090")) for own, other in graph_jobs()])
    return replace(pairs, X=seen)


def where_it_errs(
    pairs: Pairs, turns: npt.NDArray[np.float64], foreseen: npt.NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Errors of turns on Gavel by model, on each GPU, and on the V100 inside and outside of two
    spells; and of turns that are foreseen from graphs."""
    bandwidth = pairs.X[:, FEATURES.index("GPU bandwidth")]
    on = dict(
        zip(
            ("K80", "P100", "V100"),
            (bandwidth == gpu for gpu in np.unique(bandwidth)),
            strict=True,
        )
    )
    slow = on["V100"] & in_slow_spells(pairs)
    parts = {**on, "V100, slow spells": slow, "V100, the rest": on["V100"] & ~slow}
    parts["all but the slow spells"] = ~slow
    measured = _by_model(pairs, turns)
    found = [(name, part, measured) for name, part in parts.items()]
    found.append(("all, from graphs", np.ones_like(slow), _by_model(pairs, foreseen)))
    return [
        {
            "Gavel by model": name,
            "rows": int(tested[part].sum()),
            "MAE": round(error[part].sum() / tested[part].sum(), 4),
            "both speeds added up": round(2 * pairs.speed[part].mean(), 2),
        }
        for name, part, (error, tested) in found
    ]


def _by_model(
    pairs: Pairs, turns: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For each row, its errors added up and how often it was tested."""
    error, tested = np.zeros(len(pairs.speed)), np.zeros(len(pairs.speed))
    for train, test in leave_out(pairs.models):
        fitted = Turns.fit(pairs.take(train), turns[train])
        guess = fitted.predict(pairs.take(test), turns[test])
        error[test] += np.abs(guess - pairs.speed[test])
        tested[test] += 1
    return error, tested


def in_slow_spells(pairs: Pairs) -> npt.NDArray[np.bool_]:
    """Two runs of neighbours in the list of all pairs, where both jobs of a pair are slow.

    The list goes through the pairs in the order of Gavel's table of jobs. The spells were found by
    looking at all rows, and only tell where errors come from: no fit and no figure of `compare`
    leaves them out.
    """
    jobs = pl.read_parquet(data_dir() / "colocation/gavel_isolated.parquet")["model"]
    place = {job: n for n, job in enumerate(jobs.unique(maintain_order=True))}
    ends = [
        ("ResNet-18 (batch size 256)", "Recommendation (batch size 8192)"),
        ("ResNet-50 (batch size 128)", "CycleGAN"),
        ("LM (batch size 80)", "CycleGAN"),
        ("Recommendation (batch size 2048)", "CycleGAN"),
    ]
    first, last, again, over = _listed(place, ends)
    at = _listed(place, pairs.configurations.tolist())
    return np.asarray(((at >= first) & (at <= last)) | ((at >= again) & (at <= over)), np.bool_)


def _listed(place: dict[str, int], both: Sequence[Sequence[str]]) -> npt.NDArray[np.intp]:
    """The place of each unordered pair in the list of all."""
    sides = np.sort([[place[one], place[other]] for one, other in both], axis=1)
    return np.asarray(sides[:, 0] * len(place) + sides[:, 1], np.intp)


def cannot_share(kind: str, pairs: Pairs, splits: Sequence[Split]) -> dict[str, Any]:
    """F1 of the pairs that cannot share, over all test rows."""
    truth, guess, simple = [], [], []
    for train, test in splits:
        fitted = MemoryLimit().fit(pairs.limits[train], pairs.cannot[train])
        truth.append(pairs.cannot[test])
        guess.append(fitted.predict(pairs.limits[test]))
        simple.append(pairs.limits[test, 0] > 1.0)
    actual = np.concatenate(truth)
    return {
        "cannot share": "Gavel",
        "split by": kind,
        "rows": len(actual),
        "target": 0.8 if kind == "pair" else None,
        "F1": round(f1(actual, np.concatenate(guess)), 4),
        "memory > GPU": round(f1(actual, np.concatenate(simple)), 4),
        "always": round(f1(actual, np.ones(actual.size)), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
