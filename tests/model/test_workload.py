"""When two jobs are the same workload."""

from __future__ import annotations

from hashlib import sha256

from presage.model.job import JobSpec, Role
from presage.model.workload import same_needs, same_work

ONE = JobSpec("a", (Role(),), owner="ann", model="zoo:mlp", entrypoint=("python", "t.py"))


def other(**changes: object) -> JobSpec:
    fields = {"owner": "ann", "model": "zoo:mlp", "entrypoint": ("python", "t.py"), **changes}
    return JobSpec("b", (Role(min=1, max=4),), **fields)  # type: ignore[arg-type]


def test_neither_looks_at_who_runs_it_nor_at_its_size() -> None:
    bob = other(owner="bob")
    assert same_needs(bob) == same_needs(ONE)
    assert same_work(bob) == same_work(ONE)


def test_a_job_that_names_a_model_needs_what_the_model_needs() -> None:
    longer = other(entrypoint=("python", "t.py", "--epochs=9"))
    assert same_needs(longer) == same_needs(ONE)
    assert same_work(longer) != same_work(ONE)
    assert same_needs(ONE, "zoo:mlp, batch 8") != same_needs(ONE, "zoo:mlp, batch 16")


def test_the_command_tells_workloads_apart_where_no_model_is_named() -> None:
    plain = other(model=None)
    assert same_needs(plain) != same_needs(other(model=None, entrypoint=("python", "u.py")))
    assert same_work(plain) != same_work(ONE)
    assert same_work(other(entrypoint=("python t.py",))) != same_work(ONE)


def test_own_runs_on_disk_keep_the_names_they_have() -> None:
    assert same_needs(other(model=None)) == sha256(b"python t.py").hexdigest()[:24]
