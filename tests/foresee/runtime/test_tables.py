"""Run times from tables: columns, models, new groups, bundles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.foresee.runtime.columns import choose_columns
from presage.foresee.runtime.members import Effort
from presage.foresee.runtime.model import JobTimes, load_run_times
from presage.model.errors import UserError

QUICK = Effort(60, 15, 10, 300)


def runs(clusters: int = 8, each: int = 40, seed: int = 0) -> pl.DataFrame:
    """Jobs that scale with nodes; clusters differ by a factor that no column tells."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[object, ...]] = []
    for cluster in range(clusters):
        slow = np.exp(rng.normal(0, 0.5))
        for _ in range(each):
            nodes, disk = int(rng.choice([2, 4, 8, 16])), str(rng.choice(["hdd", "ssd"]))
            size = float(rng.choice([10, 20, 40]))
            seconds = slow * (5 + 3 * size / nodes) * (1.5 if disk == "hdd" else 1.0)
            seconds *= np.exp(rng.normal(0, 0.03))
            rows.append((len(rows), f"c{cluster}", f"n{cluster}", nodes, disk, size, seconds))
    # `nodes` before `gb`: a bundle that sorts the columns answers something else
    names = ["id", "cluster", "label", "nodes", "disk", "gb", "seconds"]
    return pl.DataFrame(rows, names, orient="row")


@pytest.fixture(scope="module")
def model() -> JobTimes:
    return JobTimes.fit(runs(), "seconds", ["cluster"], effort=QUICK)


def test_identifiers_other_names_and_measurements_are_left_out() -> None:
    table = runs().with_columns(
        twice=pl.col("seconds") * 2, cpu_mean=pl.lit(1.0) * pl.col("nodes"), one=pl.lit(3)
    )
    left_out = choose_columns(table, "seconds", ["cluster"]).left_out
    assert set(left_out) == {"id", "label", "twice", "cpu_mean", "one"}
    assert left_out["label"] == "is another name of cluster"


def test_known_clusters_are_foreseen(model: JobTimes) -> None:
    said = model.predict(runs())
    truth = runs()["seconds"].to_numpy()
    assert np.mean(np.abs(said[:, 1] / truth - 1)) < 0.1
    assert np.all(said[:, 0] <= said[:, 1])
    assert np.all(said[:, 1] <= said[:, 2])


def test_odd_runs_are_left_out() -> None:
    table = runs(3, 100)  # too few clusters to say anything of a new one, which is quicker
    odd = pl.Series(np.random.default_rng(3).random(table.height) < 0.03)
    broken = table.with_columns(
        seconds=pl.when(odd).then(60 * pl.col("seconds")).otherwise(pl.col("seconds"))
    )
    model = JobTimes.fit(broken, "seconds", ["cluster"], effort=QUICK)
    assert model.odd_runs == odd.sum()
    truth = table["seconds"].to_numpy()
    assert np.mean(np.abs(model.predict(table)[:, 1] / truth - 1)) < 0.1


def test_few_runs_tell_what_a_new_cluster_is_like(model: JobTimes) -> None:
    new = runs(1, 60, seed=5).with_columns(cluster=pl.lit("new"), seconds=pl.col("seconds") * 2.5)
    seen, rest = new[:5], new[5:]
    truth = rest["seconds"].to_numpy()
    blind = model.predict(rest)
    told = model.predict(rest, seen)
    assert np.mean(np.abs(told[:, 1] / truth - 1)) < 0.5 * np.mean(np.abs(blind[:, 1] / truth - 1))
    assert np.mean(told[:, 2] / told[:, 0]) < np.mean(blind[:, 2] / blind[:, 0])
    assert sum(model.likest("cluster", "new", seen).values()) == pytest.approx(1)


def test_a_bundle_answers_as_what_was_fitted(model: JobTimes, tmp_path: Path) -> None:
    model.save(tmp_path / "b.npz", "2026-01-01", "made up")
    again = load_run_times(tmp_path / "b.npz")
    table = runs(9)  # the ninth cluster is new
    np.testing.assert_allclose(again.predict(table), model.predict(table))


def test_columns_in_any_order_and_as_text_of_a_csv(model: JobTimes) -> None:
    table = runs()[:20]
    shuffled = table.select(reversed(table.columns))
    np.testing.assert_allclose(model.predict(shuffled), model.predict(table))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop("nodes"), "lacks nodes"),
        (lambda t: t.drop("disk", "nodes"), "lacks nodes, disk"),
    ],
)
def test_a_missing_column_is_named(model: JobTimes, change: object, said: str) -> None:
    assert callable(change)
    with pytest.raises(UserError, match=said):
        model.predict(change(runs()))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (runs()[:1], "1 run is too few"),
        (runs().with_columns(seconds=-pl.col("seconds")), "must be a time above 0"),
        (runs().drop("seconds"), "no column seconds"),
        (runs().select("cluster", "seconds"), "no column that describes"),
    ],
)
def test_a_bad_table_is_refused(table: pl.DataFrame, said: str) -> None:
    with pytest.raises(UserError, match=said):
        JobTimes.fit(table, "seconds", ["cluster"], effort=QUICK)
