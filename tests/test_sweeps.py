"""Sweeps in a manifest: their points, what becomes of `${name}`, and every mistake as one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from presage import job
from presage.executors.node.plan import param_variables
from presage.manifest import (
    Manifest,
    Submission,
    parse_manifest,
    parse_submission,
    read_submission,
    submission_of,
    to_spec,
    with_changes,
)
from presage.manifest.sweep import MOST_POINTS
from presage.model.errors import ManifestError
from presage.model.job import Dependency, DependsOn

GRID = """\
name: tune
command: python train.py --lr ${lr} --seed ${seed}
sweep:
  grid: {lr: [0.1, 0.01], seed: 0..2}
  at_once: 2
objective: {metric: val_loss}
"""


def sweep(sweep: dict[str, Any], **more: Any) -> Submission:
    names = sweep.get("grid") or sweep.get("space") or (sweep.get("points") or [{}])[0]
    used = " ".join(f"${{{name}}}" for name in names)
    return submission_of({"name": "a", "command": f"echo {used}", "sweep": sweep, **more})


def test_a_grid_is_every_combination_in_order() -> None:
    asked = parse_submission(GRID)
    jobs = list(asked.jobs())
    assert [dict(one.params) for one in jobs[:4]] == [
        {"lr": 0.1, "seed": 0},
        {"lr": 0.1, "seed": 1},
        {"lr": 0.1, "seed": 2},
        {"lr": 0.01, "seed": 0},
    ]
    assert jobs[5].command == "python train.py --lr 0.01 --seed 2"
    assert asked.size == len(jobs) == 6
    for one in jobs:
        assert Manifest.from_json(one.to_json()) == one


def test_values_keep_their_kind_where_the_whole_value_is_one() -> None:
    asked = submission_of(
        {
            "name": "a",
            "command": ["train", "--lr", "${lr}", "${flag}"],
            "env": {"LR": "${lr}", "HOME2": "$${HOME} $PATH ${x:-1}"},
            "resources": {"gpus": "${gpus}", "memory": "${mem}Gi"},
            "workers": "${workers}",
            "params": {"mem": 2},
            "sweep": {"points": [{"lr": 1e-05, "gpus": 2, "workers": "2..4", "flag": True}]},
        }
    )
    one = asked.first
    assert one.command == ["train", "--lr", "1e-05", "true"]
    assert one.env == {"LR": "1e-05", "HOME2": "${HOME} $PATH ${x:-1}"}
    assert one.resources is not None
    assert (one.resources.gpus, one.resources.memory, one.workers) == (2, "2048Mi", "2..4")
    assert one.params["mem"] == 2


def test_random_points_follow_from_the_seed() -> None:
    space = {
        "lr": {"log_uniform": [1e-5, 1e-1]},
        "drop": {"uniform": [0, 0.5]},
        "layers": {"int": [2, 8]},
        "opt": {"choice": ["adam", "sgd"]},
    }
    first = sweep({"space": space, "trials": 20, "seed": 3})
    assert first.points == sweep({"space": space, "trials": 20, "seed": 3}).points
    assert first.points != sweep({"space": space, "trials": 20, "seed": 4}).points
    for point in first.points:
        assert 1e-5 <= point["lr"] <= 1e-1
        assert point["layers"] in range(2, 9)
        assert point["opt"] in ("adam", "sgd")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", "lr,opt,n\n0.1,adam,1\n1e-3,sgd,2\n"),
        ("p.json", '[{"lr": 0.1, "opt": "adam", "n": 1}, {"lr": 0.001, "opt": "sgd", "n": 2}]'),
    ],
)
def test_points_of_a_file_beside_the_manifest(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    manifest = tmp_path / "m.yaml"
    manifest.write_text(
        f"name: a\ncommand: echo ${{lr}} ${{opt}} ${{n}}\nsweep: {{file: {name}}}\n"
    )
    asked = read_submission(manifest)
    assert asked.points == (
        {"lr": 0.1, "opt": "adam", "n": 1},
        {"lr": 0.001, "opt": "sgd", "n": 2},
    )
    assert not asked.as_written
    assert submission_of(asked.data).points == asked.points  # what is sent is whole


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("sweep.grid={}", "sweep.grid: is empty: a sweep needs at least one point"),
        ("sweep.grid.lr=[]", "at least 1 item"),
        ("sweep.grid.seed=0..999999999", f"a span of 1 to {MOST_POINTS:,} numbers"),
        ("sweep.grid.seed=0..4999", "sweep.grid: 10,000 points; a sweep has at most 5,000"),
        ("sweep.grid.lr=[1, 1]", "points 1 and 4 are the same: lr 1, seed 0"),
        ("sweep.grid.lr=[.nan]", "write a number, a text, true or false, not nan"),
        ("sweep.at_once=0", "sweep.at_once: input should be greater than or equal to 1"),
        ("sweep.grid.extra=[1]", "parameter extra is used nowhere; write ${extra} in command"),
        ("command=echo ${lr} ${seed} ${HOME}", "${HOME} stands for no parameter of the sweep"),
        ("sweep.points=[{lr: 1}]", "give one of grid, points, space and file"),
        ("sweep.trials=3", "sweep.trials: goes with space"),
        ("sweep.prune=best", "sweep.prune: input should be 'halving', 'hyperband' or 'median'"),
        ("sweep.grid.Lr=[1]", "lr and Lr differ only in case"),
        ("sweep.grid.a-b=[1]", "is not a name: use letters, digits and '_'"),
        ("sweep.gird={}", "sweep.gird: unknown key; did you mean 'grid'?"),
        ("objective.mode=low", "objective.mode: input should be 'min' or 'max'"),
        ("after=7", "after: write a mapping with keys such as ok, any, failed"),
        ("env.PRESAGE_PARAM_LR=1", "PRESAGE_PARAM_LR is set by Presage"),
        ("resources.gpus=${lr}x", "write whole GPUs (2) or a part of one"),
        ("nothing", "write key=value, such as resources.gpus=2"),
        ("name.x=1", "name is str, not a mapping"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, change: str, says: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(GRID)
    with pytest.raises(ManifestError) as error:
        read_submission(path, [change])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mistake_in_a_later_point_names_it() -> None:
    asked = sweep({"grid": {"g": [1, 1.5]}}, resources={"gpus": "${g}"})
    with pytest.raises(ManifestError, match=r"manifest, point 2: resources.gpus: give at most"):
        list(asked.jobs())


def test_a_space_that_is_too_small_is_refused() -> None:
    with pytest.raises(ManifestError, match="only 2 different points"):
        sweep({"space": {"o": {"choice": [1, 2]}}, "trials": 3})


def test_stopping_early_needs_something_to_compare_by() -> None:
    with pytest.raises(ManifestError, match=r"sweep.prune: needs objective"):
        sweep({"grid": {"a": [1, 2]}, "prune": "median"})


def test_a_file_of_points_is_not_read_by_a_server() -> None:
    with pytest.raises(ManifestError, match=r"send the points as sweep.points"):
        sweep({"file": "/etc/passwd"})


def test_changes_go_into_the_manifest() -> None:
    changed = with_changes(
        {"name": "a", "labels": {"x": "y"}},
        ["resources.gpus=2", "sweep.grid.lr=[1, 2]", "labels.x=null", "env.A='1'"],
    )
    assert changed == {
        "name": "a",
        "labels": {},
        "resources": {"gpus": 2},
        "sweep": {"grid": {"lr": [1, 2]}},
        "env": {"A": "1"},
    }


def test_one_job_is_as_before_and_a_sweep_is_not_one_job() -> None:
    plain = "name: a\ncommand: echo ${HOME} $${x}\n"
    assert parse_submission(plain).first == parse_manifest(plain)
    assert parse_manifest(plain).command == "echo ${HOME} $${x}"  # the shell's
    with pytest.raises(ManifestError, match="a sweep is many jobs"):
        parse_manifest(GRID)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ("a", [("a", "ok")]),
        (["a", "b", "a"], [("a", "ok"), ("b", "ok")]),
        ({"any": "a", "failed": ["b"]}, [("a", "any"), ("b", "failed")]),
    ],
)
def test_what_a_job_waits_for_reaches_the_scheduler(
    after: Any, wanted: list[tuple[str, str]]
) -> None:
    manifest = Manifest.from_json({"name": "n", "command": "x", "after": after})
    expected = tuple(Dependency(name, DependsOn(on)) for name, on in wanted)
    assert to_spec(manifest, "j", "o").after == expected


def test_a_job_reads_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job.params(lr=0.5) == {"lr": 0.5}
    variables = param_variables({"lr": 0.1, "opt": "adam", "flag": True})
    assert variables["PRESAGE_PARAM_LR"] == "0.1"
    assert variables["PRESAGE_PARAM_OPT"] == "adam"
    assert variables["PRESAGE_PARAM_FLAG"] == "true"
    monkeypatch.setenv("PRESAGE_PARAMS", variables["PRESAGE_PARAMS"])
    given = job.params(lr=0.5, width=3)
    assert given == {"lr": 0.1, "opt": "adam", "flag": True, "width": 3}
