"""What is read from a job.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from presage.executors.node.runspec import RunSpec, argv_of
from presage.manifest import Manifest
from presage.model.errors import RunSpecError


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("python train.py --lr 0.1", ("python", "train.py", "--lr", "0.1")),
        ("python train.py --lr=0.1 'two words'", ("python", "train.py", "--lr=0.1", "two words")),
        (["python", "-c", "print(1)"], ("python", "-c", "print(1)")),
        ("exit 3", ("/bin/sh", "-c", "exit 3")),
        ("SEED=1 python train.py", ("/bin/sh", "-c", "SEED=1 python train.py")),
        ("python a.py && python b.py", ("/bin/sh", "-c", "python a.py && python b.py")),
        ("echo $HOME", ("/bin/sh", "-c", "echo $HOME")),
    ],
)
def test_a_shell_is_used_when_it_is_needed(command: Any, argv: tuple[str, ...]) -> None:
    assert argv_of(command) == argv


def test_a_manifest_becomes_a_spec(tmp_path: Path) -> None:
    spec = _load(
        tmp_path,
        {
            "name": "x",
            "command": "python train.py",
            "workers": "2..8",
            "resources": {"cpus": 1.5, "memory": "2Gi", "gpus": 1},
            "checkpoint": {"dir": "ckpt", "every": "90s", "resume": "python go_on.py"},
            "time_limit": "1h30m",
            "data": ["s3://b/images", "/data/labels/"],
        },
    )
    (role,) = spec.roles
    assert (role.name, role.min, role.cpus, role.memory_mib) == ("worker", 2, 1.5, 2048)
    assert (spec.checkpoint_dir, spec.checkpoint_every_s) == ("ckpt", 90.0)
    assert spec.resume == ("python", "go_on.py")
    assert (spec.time_limit_s, spec.grace_s) == (5400.0, 30.0)
    assert spec.data == {"images": "s3://b/images", "labels": "/data/labels/"}


def test_roles_keep_their_order_and_fall_back_to_the_top(tmp_path: Path) -> None:
    roles = {"worker": {"workers": 4}, "ps": {"command": "python ps.py"}}
    spec = _load(tmp_path, {"command": "python w.py", "roles": roles})
    assert [(role.name, role.min, role.argv[1]) for role in spec.roles] == [
        ("worker", 4, "w.py"),
        ("ps", 1, "ps.py"),
    ]


def test_a_checked_manifest_can_be_run(tmp_path: Path) -> None:
    """The package `manifest` writes what this one reads."""
    manifest = Manifest.from_json(
        {
            "name": "x",
            "roles": {
                "worker": {"workers": "2..8", "resources": {"memory": "1.5G", "cpus": 2.0}},
                "ps": {"command": ["python", "ps.py"]},
            },
            "command": "python train.py",
            "data": "s3://bucket/images",
            "checkpoint": {"dir": "ckpt", "every": "60s"},
            "time_limit": "2h",
            "grace": "5s",
            "env": {"A": 1},
            "secrets": {"HF_TOKEN": "hf"},
        }
    )
    spec = _load(tmp_path, manifest.to_json())
    assert [(role.name, role.min) for role in spec.roles] == [("worker", 2), ("ps", 1)]
    assert (spec.roles[0].memory_mib, spec.roles[0].cpus) == (1431, 2.0)
    assert spec.roles[1].argv == ("python", "ps.py")
    assert spec.data == {"images": "s3://bucket/images"}
    assert (spec.checkpoint_dir, spec.checkpoint_every_s) == ("ckpt", 60.0)
    assert (spec.time_limit_s, spec.grace_s) == (7200.0, 5.0)
    assert (spec.env, spec.secrets) == ({"A": "1"}, {"HF_TOKEN": "hf"})


def test_a_worker_of_a_job_that_does_not_share_asks_for_whole_gpus(tmp_path: Path) -> None:
    half = {"command": "x", "resources": {"gpus": 0.5}}
    assert _load(tmp_path, half).roles[0].gpus == 0.5
    assert _load(tmp_path, {**half, "share": False}).roles[0].gpus == 1.0
    roles = {"worker": {}, "ps": {"resources": {"cpus": 1}}}
    asked = _load(tmp_path, {**half, "roles": roles, "share": False}).roles
    assert [role.gpus for role in asked] == [1.0, 0.0]


@pytest.mark.parametrize(
    "manifest",
    [{}, {"command": ""}, {"command": "x", "time_limit": "soon"}, {"command": "x 'y"}, [], 3],
)
def test_nonsense_is_refused(tmp_path: Path, manifest: Any) -> None:
    with pytest.raises(RunSpecError, match=r"job\.json of the job cannot be used"):
        _load(tmp_path, manifest)


def test_a_file_that_is_not_there_or_not_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunSpecError, match="cannot be read"):
        RunSpec.load(tmp_path / "job.json")
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(RunSpecError, match="is not JSON"):
        RunSpec.load(tmp_path / "job.json")


def _load(tmp_path: Path, manifest: Any) -> RunSpec:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"manifest": manifest, "folder": None}))
    return RunSpec.load(path)
