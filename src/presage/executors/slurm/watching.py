"""A Slurm cluster to look at: what `squeue`, `scontrol` and `sacct` tell anybody who may run them.

Reads alone: no command here changes anything, and none needs a privilege. What users wrote (names
of jobs) is read as JSON where it stands beside other fields, so that no name can pass for another
job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from presage.executors.slurm.commands import SlurmCommands
from presage.executors.slurm.formats import (
    expand_hosts,
    gpus_of,
    memory_mib,
    number,
    pairs,
    tres,
)
from presage.model.cluster import (
    ANY_GPU,
    UNLIMITED,
    WHOLE_GPU,
    Device,
    LabelOperator,
    LabelRule,
    Node,
    Resources,
    Where,
)
from presage.model.errors import SlurmRefused, SlurmUnreachable, WatchError
from presage.model.event import Outcome
from presage.model.job import Dependency, DependsOn, Reason, ReasonCode, Role
from presage.model.watched import (
    NodeState,
    SeenCluster,
    SeenEnd,
    SeenJob,
    SeenNode,
    SeenRun,
    SeenWorker,
)

__all__ = ["SlurmSource"]

_GAP_S = 120.0
"""After so long without a look, accounts are read: the controller forgets jobs that ended."""
_MOST_TASKS = 100_000
_RUNNING = {"RUNNING", "SUSPENDED", "COMPLETING", "STAGE_OUT", "SIGNALING"}
_RUNNING |= {"RESIZING", "STOPPED"}
_ENDS: dict[str, tuple[Outcome, ReasonCode, str]] = {
    "COMPLETED": (Outcome.SUCCEEDED, ReasonCode.OK, ""),
    "FAILED": (Outcome.FAILED, ReasonCode.ERROR, "it ended with an error"),
    "TIMEOUT": (Outcome.FAILED, ReasonCode.TIME_LIMIT, "it ran into its time limit"),
    "DEADLINE": (Outcome.FAILED, ReasonCode.TIME_LIMIT, "its deadline passed"),
    "OUT_OF_MEMORY": (Outcome.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY, "it ran out of memory"),
    "NODE_FAIL": (Outcome.LOST, ReasonCode.NODE_LOST, "a node of it failed"),
    "BOOT_FAIL": (Outcome.FAILED, ReasonCode.LAUNCH_FAILED, "its nodes did not boot"),
    "LAUNCH_FAILED": (Outcome.FAILED, ReasonCode.LAUNCH_FAILED, "it could not be launched"),
    "CANCELLED": (Outcome.STOPPED, ReasonCode.REQUESTED, "cancelled there"),
    "PREEMPTED": (Outcome.STOPPED, ReasonCode.PREEMPTED, "preempted there"),
    "REVOKED": (Outcome.STOPPED, ReasonCode.REQUESTED, "it runs on another cluster"),
    "REQUEUED": (Outcome.STOPPED, ReasonCode.REQUESTED, "requeued"),
}
_WORDS = {
    "Priority": "jobs with a higher priority wait",
    "Resources": "it is next, and waits for resources",
    "Dependency": "it waits for other jobs",
    "DependencyNeverSatisfied": "what it waits for can never happen",
    "JobHeldUser": "its owner holds it",
    "JobHeldAdmin": "an administrator holds it",
    "BeginTime": "it is not to start before a time that its owner gave",
    "PartitionDown": "its partition is down",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "ReqNodeNotAvail": "a node that it asks for is not available",
    "Reservation": "it waits for its reservation",
    "JobArrayTaskLimit": "as many tasks of its array run as may at once",
}
_HELD = {"JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "PartitionTimeLimit"}
_HELD |= {"PartitionNodeLimit", "Reservation"}
_ON = {
    "afterok": DependsOn.OK,
    "aftercorr": DependsOn.OK,
    "afterany": DependsOn.ANY,
    "afternotok": DependsOn.FAILED,
}
_ACCOUNTS = (
    *("JobID", "JobIDRaw", "User", "Partition", "State", "Submit", "Start", "End", "ExitCode"),
    *("AllocTRES", "ReqTRES", "NodeList", "NNodes", "TimelimitRaw", "Priority"),
)
_SEPARATOR = "\x1f"
_PARTITION, _FEATURE, _NAME = "slurm/partition/", "slurm/feature/", "slurm/node"
"""Labels of nodes."""


class SlurmSource:
    """One Slurm cluster: the one of this machine's configuration, or another by its name."""

    kind = "slurm"

    def __init__(
        self, cluster: str | None = None, *, commands: SlurmCommands | None = None
    ) -> None:
        self._commands = commands or SlurmCommands(cluster=cluster)
        try:
            self._commands.version()
            told = self._commands.config()
        except SlurmRefused as error:
            if cluster is None:
                raise WatchError(str(error)) from None
            raise WatchError(f"Slurm knows no cluster {cluster!r}: {error}") from None
        except SlurmUnreachable as error:
            raise WatchError(str(error), down=True) from None
        self.name = told.get("ClusterName", cluster or "slurm")
        self._accounts = told.get("AccountingStorageType", "").endswith("slurmdbd")
        memory = "MEMORY" in told.get("SelectTypeParameters", "").upper()
        self._memory = memory
        """Whether memory is something that jobs take from a node."""
        hidden = {"jobs", "nodes", "partitions"} & set(told.get("PrivateData", "").split(","))
        self._notes: tuple[str, ...] = ()
        if hidden:
            names = " and ".join(sorted(hidden))
            self._notes = (f"PrivateData hides {names} of others: much is not seen",)
        if not self._accounts:
            self._notes += ("no accounting: what happens while nobody watches may be lost",)
        self._looked_at: float | None = None

    def look(self, since: float, alive: Collection[str]) -> SeenCluster:
        """The queue and the nodes; accounts where the controller no longer knows."""
        try:
            return self._look(since, alive)
        except (SlurmUnreachable, SlurmRefused) as error:
            raise WatchError(str(error)) from None

    def _look(self, since: float, alive: Collection[str]) -> SeenCluster:
        call = self._commands.call
        now = float(int(time.time()))
        nodes = [_node(line) for line in call("scontrol", "-o", "show", "node").splitlines()]
        nodes = [one for one in nodes if one.name]
        tiers = {
            match[1]: int(match[2])
            for line in call("scontrol", "-o", "show", "partition").splitlines()
            if (match := re.search(r"^PartitionName=(\S+) .*PriorityTier=(\d+)", line))
        }
        body = json.loads(call("squeue", "--json", "-t", "all"))
        place = _SlurmNodes(nodes, self._memory)
        waiting: list[tuple[tuple[int, int, int], SeenJob]] = []
        jobs: dict[str, SeenJob] = {}
        for place_in_queue, record in enumerate(body["jobs"]):
            for seen in _jobs(record, place):
                if seen.running or seen.ended_at is not None:
                    jobs[seen.id] = seen
                else:
                    tier = max(tiers.get(name, 1) for name in seen.queue.split(","))
                    waiting.append(((-tier, -seen.priority, place_in_queue), seen))
        gap = self._looked_at is None or now - self._looked_at > _GAP_S
        known = jobs.keys() | {seen.id for _, seen in waiting}
        if self._accounts and (gap or not known >= {name.partition("@")[0] for name in alive}):
            for seen in self._past(since, place):
                if seen.id not in known:
                    jobs[seen.id] = seen
                elif seen.id in jobs and len(seen.runs) > 1:
                    jobs[seen.id] = _with_past(jobs[seen.id], seen)
        self._looked_at = now
        ordered = [seen for _, seen in sorted(waiting, key=lambda one: one[0])]
        seen_nodes = tuple(SeenNode(place.nodes[one.name], one.state) for one in nodes)
        return SeenCluster(now, (*jobs.values(), *ordered), seen_nodes, self._notes)

    def annotate(self, job: str, text: str) -> None:
        """As the comment of the job; only its owner and operators may."""
        name = job.partition("@")[0]
        try:
            self._commands.call("scontrol", "update", f"JobId={name}", f"Comment={text}")
        except (SlurmUnreachable, SlurmRefused) as error:
            raise WatchError(f"job {name} gets no comment: {error}") from None

    def close(self) -> None:
        """There is nothing to close."""

    def _past(self, since: float, place: _SlurmNodes) -> Iterator[SeenJob]:
        """Jobs that ended since then, as accounts have them."""
        call = self._commands.call
        began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))
        ask = ("sacct", "-a", "-D", "-X", "-n", "-P", f"--delimiter={_SEPARATOR}", "-S", began)
        text = call(*ask, "-o", ",".join(_ACCOUNTS))
        names: dict[str, str] = {}
        for line in call(*ask, "-o", "JobIDRaw,JobName").splitlines():
            raw, _, name = line.partition(_SEPARATOR)
            names.setdefault(raw, name)
        rows: dict[str, list[dict[str, str]]] = {}
        for line in text.splitlines():
            cells = line.split(_SEPARATOR)
            if len(cells) == len(_ACCOUNTS):
                row = dict(zip(_ACCOUNTS, cells, strict=True))
                rows.setdefault(row["JobID"], []).append(row)
        for job_id, those in rows.items():
            seen = _accounted(job_id, names.get(those[-1]["JobIDRaw"], ""), those, place)
            if seen is not None:
                yield seen


# -- nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NodeLine:
    name: str
    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...]
    partitions: frozenset[str]
    features: frozenset[str]
    state: NodeState


class _SlurmNodes:
    """The nodes, as jobs are told about them."""

    def __init__(self, nodes: Iterable[_NodeLine], memory: bool) -> None:
        self.memory = memory
        self.slurm = {one.name: one for one in nodes}
        self.nodes = {one.name: self._as_ours(one) for one in self.slurm.values()}

    def _as_ours(self, one: _NodeLine) -> Node:
        devices = tuple(Device(kind or ANY_GPU) for kind, count in one.gpus for _ in range(count))
        memory = one.memory_mib if self.memory else UNLIMITED
        labels = {f"{_PARTITION}{name}": "yes" for name in sorted(one.partitions)}
        labels |= {f"{_FEATURE}{name}": "yes" for name in sorted(one.features)}
        labels[_NAME] = one.name
        return Node(one.name, devices, one.cpus * 1000, memory, labels)


def _where(record: Mapping[str, Any]) -> Where:
    """Where a job may run: in one of its partitions, with the features that it names (those
    joined by `&`; other expressions are not read), and not on nodes that it rules out."""
    features = str(record.get("features") or "")
    plain = re.fullmatch(r"[\w.&-]*", features)
    always = [LabelRule(f"{_FEATURE}{name}") for name in features.split("&") if plain and name]
    without = tuple(_hosts(str(record.get("excluded_nodes") or "")))
    if without:
        always.append(LabelRule(_NAME, LabelOperator.NOT_IN, without))
    partitions = filter(None, str(record.get("partition") or "").split(","))
    return Where(tuple((LabelRule(f"{_PARTITION}{name}"), *always) for name in partitions))


def _node(line: str) -> _NodeLine:
    told = pairs(line)
    features = told.get("ActiveFeatures", "").replace("(null)", "")
    return _NodeLine(
        told.get("NodeName", ""),
        int(told.get("CPUEfctv") or told.get("CPUTot") or 0),
        int(told.get("RealMemory") or 0),
        tuple(gpus_of(told.get("Gres", ""))),
        frozenset(filter(None, told.get("Partitions", "").split(","))),
        frozenset(filter(None, features.split(","))),
        _node_state(told.get("State", "")),
    )


def _node_state(text: str) -> NodeState:
    base, *flags = re.split(r"[+]", text.rstrip("*~#!%$@^-"))
    if base in ("DOWN", "ERROR", "FAIL", "FUTURE", "UNKNOWN") or text.endswith("*"):
        return NodeState.DOWN
    if {"NOT_RESPONDING", "FAIL", "POWERING_DOWN"} & set(flags):
        return NodeState.DOWN
    if {"DRAIN", "MAINTENANCE", "RESERVED"} & set(flags) or base.startswith("DRAIN"):
        return NodeState.DRAINING
    return NodeState.UP


def _hosts(text: str) -> tuple[str, ...]:
    return () if text == "None assigned" else expand_hosts(text)


def _numbers(text: str) -> Iterator[str]:
    """`1-3,07` as numbers, with their zeros."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            for one in range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1):
                yield str(one).zfill(len(first))


# -- jobs -----------------------------------------------------------------------------------------


def _jobs(record: Mapping[str, Any], place: _SlurmNodes) -> Iterator[SeenJob]:
    """The jobs of one record: those tasks of an array that wait share one."""
    task, array = number(record.get("array_task_id")), int(number(record["array_job_id"]) or 0)
    tasks, _, at_once = str(record.get("array_task_string") or "").partition("%")
    if array and task is None and tasks:
        for one in _numbers(tasks):
            yield _job(f"{array}_{one}", record, place, str(array), int(at_once or 0))
    elif array and task is not None:
        yield _job(f"{array}_{task:.0f}", record, place, str(array))
    else:
        yield _job(str(record["job_id"]), record, place)


def _job(
    job_id: str, record: Mapping[str, Any], place: _SlurmNodes, array: str = "", at_once: int = 0
) -> SeenJob:
    states = record["job_state"]
    states = [states] if isinstance(states, str) else list(states)
    state = "COMPLETING" if "COMPLETING" in states else states[0]
    asked = _Amounts.of(record.get("tres_req_str") or "", place.memory)
    count = max(1, int(number(record.get("node_count")) or 1))
    gpu_type = _gpu_type(record)
    role = Role(
        resources=_each(asked, count),
        min=count,
        max=count,
        gpu_types=(gpu_type,) if gpu_type else (),
        where=_where(record),
    )
    limit = number(record.get("time_limit"))
    submitted = number(record["submit_time"]) or 0.0
    started, ended = (number(record.get(name)) or 0.0 for name in ("start_time", "end_time"))
    attempt = int(number(record.get("restart_cnt")) or 0) + 1
    why = str(record.get("state_reason") or "")
    hosts = _hosts(str(record.get("nodes") or ""))
    runs: tuple[SeenRun, ...] = ()
    end = None
    if state in _ENDS:
        code = _exit_code(record.get("exit_code"))
        end = _end(state, max(ended, submitted), code)
    if hosts and (state in _RUNNING or end is not None):
        workers = _workers(hosts, record, place.memory)
        runs = (SeenRun(attempt, started, workers, end),)
    waits = state == "PENDING" or (not runs and end is None)
    eligible = number(record.get("eligible_time"))
    after, understood = _dependencies(str(record.get("dependency") or "")) if waits else ((), True)
    priority = int(number(record.get("priority")) or 0)
    held = why in _HELD or not understood or (waits and not priority)
    return SeenJob(
        job_id,
        str(record.get("name") or ""),
        str(record.get("user_name") or record.get("user_id") or ""),
        str(record.get("partition") or ""),
        submitted,
        role,
        runs,
        None if runs else end,
        time_limit_s=None if limit is None or not limit else limit * 60,
        priority=priority,
        labels={"account": str(record.get("account") or "")},
        why=_WORDS.get(why, f"Slurm says {why}") if waits and why != "None" else "",
        held=_WORDS.get(why, "it waits for other jobs") if waits and held else "",
        not_before=eligible if waits and eligible and why == "BeginTime" else None,
        after=after,
        array=array,
        at_once=at_once,
        expected_at=started if waits and started > submitted else None,
    )


def _end(state: str, at: float, code: int | None, again: bool = False) -> SeenEnd:
    outcome, reason, text = _ENDS[state]
    why = Reason(reason, text) if text else None
    return SeenEnd(at, outcome, why, code, again)


def _exit_code(value: Any) -> int | None:
    if isinstance(value, Mapping):
        return int(number(value.get("return_code")) or 0)
    return None if value is None else int(value) >> 8 & 0xFF


@dataclass(frozen=True, slots=True)
class _Amounts:
    """What a list of trackable resources adds up to."""

    cpus: int
    memory_mib: int
    gpus: int

    @classmethod
    def of(cls, text: str, memory: bool) -> _Amounts:
        told = tres(text)
        gpus = sum(count for _, count in gpus_of(text))
        cpus = int(told.get("cpu", "0")) if told.get("cpu", "0").isdecimal() else 0
        return cls(cpus, memory_mib(told.get("mem", "")) if memory else 0, gpus)


def _each(whole: _Amounts, count: int) -> Resources:
    """What one of so many workers asks for, if all ask for the same."""
    return Resources(
        cpu_milli=ceil(whole.cpus / count) * 1000,
        memory_mib=ceil(whole.memory_mib / count),
        gpu_milli=ceil(whole.gpus / count) * WHOLE_GPU,
    )


def _gpu_type(record: Mapping[str, Any]) -> str:
    names = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")
    texts = [str(record.get(name) or "") for name in names]
    match = re.search(r"gpu:([A-Za-z_][\w.-]*)[:=]\d", " ".join(texts))
    return match[1] if match else ""


def _workers(
    hosts: tuple[str, ...], record: Mapping[str, Any], memory: bool
) -> tuple[SeenWorker, ...]:
    """One worker a node, with what it was given there."""
    text = record.get("tres_alloc_str") or record.get("tres_req_str") or ""
    whole = _Amounts.of(text, memory)
    details = record.get("gres_detail") or []
    count = len(hosts)
    gpus = [_share(whole.gpus, count, k) for k in range(count)]
    devices: list[tuple[int, ...]] = [()] * count
    if len(details) == count:
        for k, detail in enumerate(details):
            match = re.search(r"IDX:([\d,-]+)", detail)
            devices[k] = tuple(map(int, _numbers(match[1]))) if match else ()
            gpus[k] = len(devices[k])
    return tuple(
        SeenWorker(
            host,
            Resources(
                _share(whole.cpus, count, k) * 1000,
                _share(whole.memory_mib, count, k),
                gpus[k] * WHOLE_GPU,
            ),
            devices[k],
        )
        for k, host in enumerate(hosts)
    )


def _share(whole: int, count: int, k: int) -> int:
    """The part of the k-th, if a whole is shared as evenly as can be."""
    return whole // count + (k < whole % count)


def _dependencies(text: str) -> tuple[tuple[Dependency, ...], bool]:
    """What a job waits for, and whether that is all of it."""
    dependencies, understood = [], "?" not in text
    for part in filter(None, re.split(r"[,?]", text)):
        kind, _, jobs = re.sub(r"\([^)]*\)", "", part).partition(":")
        for job in filter(None, jobs.split(":")):
            if kind in _ON and re.fullmatch(r"\d+(_\d+)?", job):
                dependencies.append(Dependency(job, _ON[kind]))
            else:
                understood = False
        understood = understood and bool(jobs)
    return tuple(dependencies), understood


# -- accounts -------------------------------------------------------------------------------------


def _accounted(
    job_id: str, name: str, rows: list[dict[str, str]], place: _SlurmNodes
) -> SeenJob | None:
    """A job that is over, from its rows in the accounts: one for each time it was started."""
    last = rows[-1]
    if last["State"].split(" ")[0] not in _ENDS or "[" in job_id:
        return None
    runs: list[SeenRun] = []
    for row in sorted(rows, key=lambda row: _seconds(row["Start"]) or 0.0):
        state, hosts = row["State"].split(" ")[0], _hosts(row["NodeList"])
        started, ended = _seconds(row["Start"]), _seconds(row["End"])
        if started is None or ended is None or not hosts or state not in _ENDS:
            continue
        end = _end(state, ended, int(row["ExitCode"].partition(":")[0] or 0), row is not last)
        record = {"tres_alloc_str": row["AllocTRES"], "tres_req_str": row["ReqTRES"]}
        workers = _workers(hosts, record, place.memory)
        runs.append(SeenRun(len(runs) + 1, started, workers, end))
    ended = _seconds(last["End"])
    if ended is None:
        return None
    count = max(1, int(last["NNodes"] or 1))
    limit, priority = last["TimelimitRaw"], last["Priority"]
    return SeenJob(
        job_id,
        name,
        last["User"],
        last["Partition"],
        min(filter(None, (_seconds(row["Submit"]) for row in rows)), default=ended),
        Role(
            resources=_each(_Amounts.of(last["ReqTRES"], place.memory), count),
            min=count,
            max=count,
            where=_where({"partition": last["Partition"]}),
        ),
        tuple(runs),
        None if runs else _end(last["State"].split(" ")[0], ended, None),
        time_limit_s=float(limit) * 60 if limit.isdecimal() else None,
        priority=int(priority) if priority.isdecimal() else 0,
    )


def _with_past(seen: SeenJob, past: SeenJob) -> SeenJob:
    """A job with the runs that only accounts know."""
    latest = seen.runs[-1]
    before = tuple(run for run in past.runs if run.attempt < latest.attempt)
    return replace(seen, runs=(*before, latest))


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() and int(text) else None
