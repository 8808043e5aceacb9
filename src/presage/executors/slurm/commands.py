"""Slurm's commands behind typed values: tested with 22.05 and 26.05, needs 21.08 or newer.

Jobs come from `squeue --json`, whose fields differ between versions; nodes and partitions from
`scontrol --oneliner`, the past from `sacct`. Every call has a timeout, since Slurm's clients wait
for minutes for a controller that is down. What reads needs no right to write. It knows nothing of
Presage's runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from presage.executors.slurm.formats import (
    expand_hosts,
    gpus_of,
    limit_s,
    memory_mib,
    number,
    pairs,
    tres,
)
from presage.model.cluster import ANY_GPU, UNLIMITED, Device, Node
from presage.model.errors import SlurmRefused, SlurmUnreachable

__all__ = [
    "AccountedJob",
    "BatchJob",
    "SlurmCommands",
    "SlurmJob",
    "SlurmNode",
    "SlurmPartition",
    "StepShape",
]

_OLDEST = (21, 8)
_CALL_S = 20.0
_UNUSABLE = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "ERROR"}
_UNUSABLE |= {"POWERED_DOWN", "POWERING_DOWN", "MAINT", "INVALID_REG", "UNKNOWN", "FUTURE"}
_DRAINING = {"DRAIN", "DRAINED", "DRAINING"}
_GONE = {"DOWN", "FAIL", "ERROR", "FUTURE", "POWERED_DOWN", "UNKNOWN"}
_OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_OVER |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"}
_SACCT = "JobIDRaw,JobName,User,Account,Partition,QOS,State,ExitCode,Submit,Eligible,Start,End,"
_SACCT += "TimelimitRaw,NodeList,ReqTRES,AllocTRES,Reason,DerivedExitCode,Priority"


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """A partition."""

    name: str
    default: bool
    up: bool
    nodes: tuple[str, ...]
    default_s: float | None
    """Time limit of a job that asks for none; None for no limit."""
    most_s: float | None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node: what it is, and how Slurm finds it."""

    node: Node
    address: str
    states: frozenset[str]
    """Such as `IDLE` or `MIXED`, with what besides: `DRAIN`, `NOT_RESPONDING` …"""
    partitions: tuple[str, ...]
    reason: str
    """Why it is down or drained; empty if it is not."""
    cpus_held: int
    gpus_held: int
    memory_held_mib: int

    @property
    def usable(self) -> bool:
        """Whether new jobs may start on it."""
        return not self.states & _UNUSABLE

    @property
    def gone(self) -> bool:
        """Whether what ran on it runs no more. One that is drained, or does not respond just now,
        keeps its jobs."""
        return bool(self.states & _GONE)

    @property
    def draining(self) -> bool:
        """Whether somebody wants it empty."""
        return bool(self.states & _DRAINING)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job that Slurm has, or had a short while ago. Times are seconds since 1970; 0 for none."""

    id: int
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    """The base state, such as `PENDING`, `RUNNING` or `TIMEOUT`."""
    flags: frozenset[str]
    """What is said besides: `COMPLETING`, `REQUEUED` …"""
    reason: str
    comment: str
    submitted_at: float
    eligible_at: float
    started_at: float
    """Of a job that waits: when Slurm expects it to start, if it does."""
    ended_at: float
    limit_s: float | None
    nodes: tuple[str, ...]
    node_count: int
    cpus: int
    memory_mib: int
    gpus: int
    gpu_type: str
    priority: float
    exit_code: int
    signal: int
    restarts: int
    array_id: int
    array_task: int | None
    het_id: int
    dependency: str

    @property
    def over(self) -> bool:
        """Whether it will never run again, unless somebody requeues it."""
        return self.state in _OVER

    @property
    def waits(self) -> bool:
        """Whether it has not started."""
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")

    @property
    def holds(self) -> bool:
        """Whether it has something on its nodes, or is just about to give it back."""
        if self.over:
            return "COMPLETING" in self.flags
        return bool(self.nodes) and self.state != "PENDING"


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """A job of the past, from `sacct`."""

    id: str
    """With the number of its task or component: `12`, `12_3`, `12+1`."""
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    cancelled_by: str
    """The number of the user who cancelled it, if somebody did."""
    exit_code: int
    signal: int
    submitted_at: float
    eligible_at: float
    started_at: float
    ended_at: float
    limit_s: float | None
    nodes: tuple[str, ...]
    cpus: int
    memory_mib: int
    gpus: int
    gpu_type: str


@dataclass(frozen=True, slots=True)
class StepShape:
    """What is asked for on each of some nodes: one component of a job."""

    nodes: tuple[str, ...]
    """By name; empty where Slurm chooses."""
    count: int
    cpus: int
    memory_mib: int
    """0 for what the partition gives."""
    gpus: int
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What to submit. Several shapes make it a heterogeneous job."""

    name: str
    shapes: tuple[StepShape, ...]
    script: str
    output: Path
    directory: Path
    limit_s: float | None = None
    signal: str = ""
    """What is sent before the time limit, to whom and how long before: `B:USR1@120`."""
    options: tuple[str, ...] = ()
    """More options of sbatch, such as `--partition=gpu`."""

    def with_options(self, *options: str) -> BatchJob:
        """The same with more options."""
        return replace(self, options=(*self.options, *options))

    def argv(self) -> list[str]:
        """The arguments of sbatch."""
        common = [f"--job-name={self.name}", f"--output={self.output}", "--no-requeue"]
        common += [f"--chdir={self.directory}", "--export=ALL", "--open-mode=append"]
        if self.limit_s is not None:
            common.append(f"--time={max(1, -(-int(self.limit_s) // 60))}")
        if self.signal:
            common.append(f"--signal={self.signal}")
        argv = ["--parsable"]
        for number_, shape in enumerate(self.shapes):
            argv += [":"] if number_ else []
            argv += [*common, *_shape_options(shape), *self.options]
        return argv


def _shape_options(shape: StepShape) -> list[str]:
    options = [f"--nodes={shape.count}", "--ntasks-per-node=1", f"--cpus-per-task={shape.cpus}"]
    if shape.nodes:
        options.append(f"--nodelist={','.join(shape.nodes)}")
    if shape.memory_mib:
        options.append(f"--mem={shape.memory_mib}M")
    if shape.gpus:
        kind = f"{shape.gpu_type}:" if shape.gpu_type else ""
        options.append(f"--gres=gpu:{kind}{shape.gpus}")
    return options


class SlurmCommands:
    """The Slurm that this machine belongs to, or that of `env` (`SLURM_CONF`, `PATH`). With
    `cluster`, another one that the same accounting knows."""

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cluster: str | None = None,
        timeout_s: float = _CALL_S,
    ) -> None:
        self._env = dict(os.environ if env is None else env)
        # Times as seconds since 1970, and no surprises from somebody's own formats.
        self._env |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        for name in ("SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SACCT_FORMAT", "SINFO_FORMAT"):
            self._env.pop(name, None)
        self._cluster = cluster
        self._timeout_s = timeout_s

    # -- reading --------------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """Of the commands; raises SlurmUnreachable where there are none, or too old ones."""
        said = self.call("sinfo", "--version", alone=True)
        match = re.search(r"(\d+)\.(\d+)", said)
        if match is None:
            raise SlurmUnreachable(f"'sinfo --version' says {said.strip()!r}; is that Slurm?")
        version = (int(match.group(1)), int(match.group(2)))
        if version < _OLDEST:
            raise SlurmUnreachable(
                f"Slurm {version[0]}.{version[1]:02} is too old: Presage needs "
                f"{_OLDEST[0]}.{_OLDEST[1]:02} or newer, where 'squeue --json' exists"
            )
        return version

    def config(self) -> dict[str, str]:
        """What the controller is configured to do."""
        lines = self.call("scontrol", "show", "config").splitlines()
        settings = (line.partition(" = ") for line in lines if " = " in line)
        return {name.strip(): value.strip() for name, _, value in settings}

    def partitions(self) -> list[SlurmPartition]:
        """Every partition that one may see."""
        return [_partition(record) for record in self._scontrol("partition")]

    def partition(self, name: str | None) -> SlurmPartition:
        """A partition by name, or the default one; raises SlurmRefused with those there are."""
        there = self.partitions()
        for partition in there:
            if partition.name == name or (name is None and partition.default):
                return partition
        names = ", ".join(sorted(partition.name for partition in there)) or "none"
        if name is None:
            raise SlurmRefused(f"Slurm has no default partition: give one of {names}")
        raise SlurmRefused(f"Slurm has no partition {name!r}; there are: {names}")

    def nodes(self, partition: str | None = None) -> list[SlurmNode]:
        """The nodes, of one partition or of all."""
        nodes = [_node(record) for record in self._scontrol("node", "--details")]
        return [node for node in nodes if partition is None or partition in node.partitions]

    def jobs(self, *, mine: bool = False) -> list[SlurmJob]:
        """The jobs that Slurm knows, those that ended a short while ago too (`MinJobAge`). `mine`:
        of this user alone, as far as the version can tell; older ones print all as JSON."""
        whose = [f"--user={os.getuid()}"] if mine else []
        said = self._json(self.call("squeue", "--json", "--states=all", *whose))
        return [_job(body) for body in said.get("jobs", ())]

    def starts(self) -> dict[str, float]:
        """When Slurm expects jobs that wait to start, by id (`12`, `12_3`, `12+1`), as
        `squeue --start` says; jobs about which it says nothing are left out."""
        lines = self.call("squeue", "--start", "--noheader", "--format=%i|%S").splitlines()
        columns = (line.rpartition("|") for line in lines)
        return {id: float(when) for id, _, when in columns if when.replace(".", "").isdecimal()}

    def accounting(self, since: float, until: float | None = None) -> list[AccountedJob]:
        """The jobs that ran or waited at some time in a span, also such as are not over; raises
        SlurmUnreachable where no accounting is kept."""
        options = ["--allusers", "--allocations", "--parsable2", "--noheader", "--duplicates"]
        options += [f"--format={_SACCT}", "--delimiter=\x1f", f"--starttime={_moment(since)}"]
        if until is not None:
            options.append(f"--endtime={_moment(until)}")
        lines = self.call("sacct", *options).splitlines()
        rows = (line.split("\x1f") for line in lines)
        return [_accounted(dict(zip(_SACCT.split(","), row, strict=False))) for row in rows]

    # -- writing --------------------------------------------------------------------------------

    def submit(self, batch: BatchJob) -> int:
        """Submit a batch job; its id. Raises SlurmRefused with Slurm's own words."""
        said = self.call("sbatch", *batch.argv(), given=batch.script)
        match = re.match(r"\s*(\d+)", said)
        if match is None:
            raise SlurmRefused(f"sbatch said {said.strip()!r} and no number of a job")
        return int(match.group(1))

    def cancel(self, *, name: str | None = None, ids: Sequence[int] = ()) -> None:
        """Cancel jobs, by name or by ids; such as are over already stay so."""
        if name is not None:
            self.call("scancel", f"--name={name}", f"--user={os.getuid()}")
        if ids:
            self.call("scancel", *map(str, ids))

    def update(self, id: int, **values: str) -> None:
        """Change values of a job, such as `Comment` or `NumNodes`."""
        self.call("scontrol", "update", f"JobId={id}", *(f"{k}={v}" for k, v in values.items()))

    # -- calling --------------------------------------------------------------------------------

    def call(self, program: str, *argv: str, given: str = "", alone: bool = False) -> str:
        """What a command prints; raises SlurmUnreachable or SlurmRefused in one line. `alone`: the
        command needs no cluster."""
        path = shutil.which(program, path=self._env.get("PATH"))
        if path is None:
            raise SlurmUnreachable(
                f"there is no Slurm here: {program} is not on PATH; start Presage on a node that "
                "submits jobs, or load Slurm's module first"
            )
        where = [] if alone or self._cluster is None else [f"--clusters={self._cluster}"]
        try:
            done = subprocess.run(
                [path, *where, *argv],
                env=self._env,
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnreachable(
                f"Slurm's controller did not answer {program} within {self._timeout_s:g} s; see "
                "'scontrol ping'"
            ) from None
        except OSError as error:
            raise SlurmUnreachable(f"{path} cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            raise _failure(program, done.stderr or done.stdout)
        return done.stdout

    def _scontrol(self, what: str, *options: str) -> list[dict[str, str]]:
        lines = self.call("scontrol", "--oneliner", *options, "show", what).splitlines()
        return [pairs(line) for line in lines if line.startswith(f"{what.capitalize()}Name=")]

    def _json(self, text: str) -> dict[str, Any]:
        try:
            said: dict[str, Any] = json.loads(text[text.index("{") :])
        except ValueError:
            raise SlurmUnreachable("squeue --json printed no JSON; is its plugin there?") from None
        return said


_DOWN: tuple[str, ...] = ("Unable to contact slurm controller", "Unable to establish controller")
_DOWN += ("Connection refused", "Connection reset", "Connection timed out", "Broken pipe")
_DOWN += ("No route to host", "Network is unreachable", "missing socket error")
_DOWN += ("Socket timed out", "Transport endpoint", "Zero Bytes", "slurm_persist_conn_open")
_DOWN += ("Resource temporarily unavailable", "temporarily unable to accept job")
_DOWN += ("in standby mode", "Communication connection failure", "Message receive failure")
_DOWN += ("Message send failure", "sack socket", "authentication error", "connect to munge")
"""What commands say when nobody answers them, also when a controller dies in the middle of a word:
with a key of its own (`auth/slurm`), nobody signs for a client then. None of it is about the job
that was submitted."""


def _failure(program: str, said: str) -> SlurmUnreachable | SlurmRefused:
    """What a command that failed says, in one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = [re.sub(rf"^(?:\S*{program}: )?(?:error|fatal): ", "", line) for line in lines]
    text = "; ".join(dict.fromkeys(words)) or "it gave no reason"
    if any(sign in said for sign in _DOWN):
        return SlurmUnreachable(f"Slurm's controller does not answer {program}: {text[:300]}")
    if "Slurm accounting storage is disabled" in said:
        return SlurmUnreachable("this Slurm keeps no accounting: sacct has nothing to say")
    if "establish a configuration source" in said or "slurm.conf" in said:
        return SlurmUnreachable(
            f"Slurm is not set up here: set SLURM_CONF to its slurm.conf, or start Presage on a "
            f"login node ({text[:200]})"
        )
    return SlurmRefused(f"{program}: {text[:400]}")


# -- reading what was printed --------------------------------------------------------------------


def _partition(record: Mapping[str, str]) -> SlurmPartition:
    return SlurmPartition(
        name=record["PartitionName"],
        default=record.get("Default") == "YES",
        up=record.get("State", "UP") == "UP",
        nodes=expand_hosts(record.get("Nodes", "")),
        default_s=limit_s(record.get("DefaultTime", "")),
        most_s=limit_s(record.get("MaxTime", "")),
    )


def _node(record: Mapping[str, str]) -> SlurmNode:
    devices = tuple(
        Device(kind.lower() or ANY_GPU)
        for kind, count in gpus_of(record.get("Gres", ""))
        for _ in range(count)
    )
    features = record.get("AvailableFeatures", "(null)")
    labels = {} if features in ("(null)", "") else {name: "" for name in features.split(",")}
    held = tres(record.get("AllocTRES", ""))
    return SlurmNode(
        node=Node(
            record["NodeName"],
            devices,
            int(record.get("CPUEfctv") or record.get("CPUTot") or 0) * 1000,
            int(record.get("RealMemory") or 0) or UNLIMITED,
            labels,
        ),
        address=record.get("NodeAddr") or record["NodeName"],
        states=frozenset(re.split(r"[+*]", record.get("State", "UNKNOWN")))
        | (frozenset({"NOT_RESPONDING"}) if "*" in record.get("State", "") else frozenset()),
        partitions=tuple(record.get("Partitions", "").split(",")),
        reason=record.get("Reason", ""),
        cpus_held=int(record.get("CPUAlloc") or 0),
        # Not every cluster counts GPUs as TRES.
        gpus_held=sum(
            count for _, count in gpus_of(record.get("GresUsed") or record.get("AllocTRES", ""))
        ),
        memory_held_mib=memory_mib(held.get("mem", "")),
    )


def _job(body: Mapping[str, Any]) -> SlurmJob:
    states = body.get("job_state") or ["UNKNOWN"]
    states = [states] if isinstance(states, str) else list(states)
    code, sent = _exit(body.get("exit_code"))
    asked = body.get("tres_alloc_str") or body.get("tres_req_str") or ""
    gpus = gpus_of(asked) or _per_node(body)
    task = body.get("array_task_id")
    minutes = number(body.get("time_limit"))

    def amount(name: str) -> float:
        return number(body.get(name)) or 0.0

    return SlurmJob(
        id=int(body["job_id"]),
        name=body.get("name") or "",
        user=body.get("user_name") or "",
        account=body.get("account") or "",
        partition=body.get("partition") or "",
        qos=body.get("qos") or "",
        state=states[0],
        flags=frozenset(states[1:]),
        reason=body.get("state_reason") or "",
        comment=_words(body.get("comment")),
        submitted_at=amount("submit_time"),
        eligible_at=amount("eligible_time"),
        started_at=amount("start_time"),
        ended_at=amount("end_time"),
        # Old versions print limits that are none as huge numbers.
        limit_s=minutes * 60 if minutes is not None and minutes < 1 << 31 else None,
        nodes=expand_hosts(body.get("nodes") or ""),
        node_count=int(amount("node_count")),
        cpus=int(amount("cpus")),
        memory_mib=memory_mib(tres(asked).get("mem", "")),
        gpus=sum(count for _, count in gpus),
        gpu_type=next((kind for kind, _ in gpus if kind), _type_asked(body)).lower(),
        priority=amount("priority"),
        exit_code=code,
        signal=sent,
        restarts=int(amount("restart_cnt")),
        array_id=int(amount("array_job_id")),
        array_task=None if number(task) is None else int(number(task) or 0),
        het_id=int(amount("het_job_id")),
        dependency=body.get("dependency") or "",
    )


def _exit(value: Any) -> tuple[int, int]:
    """Exit code and signal: a wait status in old versions."""
    if isinstance(value, dict):
        sent = value.get("signal") or {}
        sent = sent.get("id", sent.get("signal_id")) if isinstance(sent, dict) else sent
        return int(number(value.get("return_code")) or 0), int(number(sent) or 0)
    status = int(number(value) or 0)
    return status >> 8, status & 0x7F


def _per_node(body: Mapping[str, Any]) -> list[tuple[str, int]]:
    """GPUs of a cluster that does not count them as TRES."""
    nodes = int(number(body.get("node_count")) or 1)
    each = gpus_of(body.get("tres_per_node") or "")
    return [(kind, count * nodes) for kind, count in each]


def _type_asked(body: Mapping[str, Any]) -> str:
    names = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")
    asked = (gpus_of(body.get(name) or "") for name in names)
    return next((kind for gpus in asked for kind, _ in gpus if kind), "")


def _words(comment: Any) -> str:
    """A comment, which some versions split by who made it."""
    if isinstance(comment, dict):
        return str(comment.get("job") or "")
    return comment or ""


def _accounted(record: Mapping[str, str]) -> AccountedJob:
    state, _, who = record["State"].partition(" by ")
    code, _, sent = record["ExitCode"].partition(":")
    held = record["AllocTRES"] or record["ReqTRES"]
    gpus = gpus_of(held)
    minutes = record["TimelimitRaw"]
    return AccountedJob(
        id=record["JobIDRaw"],
        name=record["JobName"],
        user=record["User"],
        account=record["Account"],
        partition=record["Partition"],
        qos=record["QOS"],
        state=state.split(" ")[0],
        cancelled_by=who,
        exit_code=int(code or 0),
        signal=int(sent or 0),
        submitted_at=_seconds(record["Submit"]),
        eligible_at=_seconds(record["Eligible"]),
        started_at=_seconds(record["Start"]),
        ended_at=_seconds(record["End"]),
        limit_s=float(minutes) * 60 if minutes.isdecimal() else None,
        nodes=() if "assigned" in record["NodeList"] else expand_hosts(record["NodeList"]),
        cpus=int(tres(held).get("cpu", "0")),
        memory_mib=memory_mib(tres(held).get("mem", "")),
        gpus=sum(count for _, count in gpus),
        gpu_type=next((kind for kind, _ in gpus if kind), "").lower(),
    )


def _seconds(text: str) -> float:
    return float(text) if text.replace(".", "").isdecimal() else 0.0


def _moment(when: float) -> str:
    """A time as sacct reads it, whatever the time zone."""
    return f"uts{int(when)}"
