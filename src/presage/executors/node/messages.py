"""What executors, guardians, agents and drivers tell each other: every message there is.

No future annotations here: the codec (`wire`) reads them. Standard library only.
"""

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

from presage.executors.node.wire import Message, MessageError, encode, loads, read_bounded

__all__ = [
    "AGREED",
    "HOLD",
    "STEPPING",
    "STOP_AT",
    "AgentNote",
    "AttachOrder",
    "Cursor",
    "DriverLine",
    "EndReason",
    "Event",
    "GoOrder",
    "HeadNote",
    "Identity",
    "JobFile",
    "LaunchOrder",
    "LeftOut",
    "LimitOrder",
    "LinkLine",
    "Listing",
    "Members",
    "PartOrder",
    "Placed",
    "Processes",
    "ProgressReport",
    "ResizeOrder",
    "ResultsNote",
    "RunNews",
    "RunPlan",
    "Saved",
    "SizeRequest",
    "SlurmSetup",
    "StopOrder",
    "UnixUser",
    "Verdict",
    "Word",
    "WorkBefore",
    "WorkerPlan",
    "exited",
    "hear",
    "refused",
    "say",
]

Identity: TypeAlias = tuple[int, int, str, tuple[int, ...]]
"""A worker and where it is: role, index, node, devices."""
Listing: TypeAlias = dict[str, dict[str, tuple[int, int]]]
"""Size and time of change (ns) of each file, by its path, by unit."""


# -- what a run is ------------------------------------------------------------------------------


class JobFile(Message):
    """What an executor must know of a job; the server writes it before each launch."""

    FILE = "job.json"

    manifest: dict[str, Any]
    """As the user wrote it; `runspec` reads it."""
    folder: str | None = None
    """Digest of the uploaded work folder."""
    owner: str | None = None
    team: str | None = None
    memory_mib: dict[str, int] | None = None
    """By role, if it was raised since."""
    most_results: int = 0
    """Bytes of results that a job may keep; 0 for any number."""
    soft_shares: bool = False
    """Whether its shares of GPUs may pass their limits while nobody else wants the GPU."""
    share_weight: float = 1.0
    """Its part of what nobody's request covers."""


class UnixUser(Message):
    """As whom the processes of a run run."""

    uid: int
    gid: int
    name: str
    home: str
    """The empty string for none."""
    groups: tuple[int, ...] = ()


class WorkerPlan(Message):
    """One worker, as its guardian starts and watches it."""

    name: str
    identity: Identity
    argv: tuple[str, ...]
    resume: tuple[str, ...] | None
    """What to start instead when there is a checkpoint."""
    agent: bool
    """Whether the first process is a torchrun agent and the program runs below it."""
    env: dict[str, str]
    cpus: tuple[int, ...]
    memory: int
    """Bytes it may use; 0 when it may use what there is."""
    serves: bool
    """Whether it works for the others and never ends by itself (a parameter server)."""
    log: Path
    progress: Path
    container: str | None
    cgroup: str
    """Name of the group below that of the run, where memory is limited by one."""
    console: str = ""
    """What it reads from: nothing, a `pipe`, or a terminal (`tty`) that it also writes to."""


class RunPlan(Message):
    """All that a guardian needs. It holds paths of secrets and never their content."""

    FILE = "plan.json"

    job: str
    attempt: int
    run: Path
    wake: Path
    work: Path
    folder: Path | None
    data: dict[str, str]
    data_dir: Path
    progress_dir: Path
    results: str | None
    result_dir: Path
    checkpoint_dir: Path
    checkpoint_link: str
    log_dir: Path
    log_cap: int
    telemetry: Path
    gpus: tuple[str, ...]
    """What CUDA calls the devices, where that is not their number."""
    nvml: str | None
    """Where the binding of NVML is."""
    secrets: dict[str, Path]
    env: dict[str, str]
    time_limit_s: float | None
    grace_s: float
    torchrun: bool
    """Whether workers are to find each other as torchrun's do."""
    agents: bool
    """Whether each worker is a torchrun agent."""
    live: bool
    """Whether agents may come and go while others stay."""
    engine: str | None
    image: str | None
    cgroup: Path | None
    workers: tuple[WorkerPlan, ...]
    """In the order of their ranks."""
    git: tuple[str, str] | None = None
    """A repository that is the work folder, and what of it: a branch, tag or commit."""
    keep: tuple[str, ...] = ()
    """Patterns of the work files that are results; none for all that are new or changed."""
    ignore: tuple[str, ...] = ()
    most_results: int = 0
    """Bytes of results that the job may keep; 0 for any number."""
    warm: bool = False
    """Whether workers load PyTorch before they are told to begin."""
    user: UnixUser | None = None
    """As whom all but the guardian run; None: as whoever runs the server."""
    mounts: tuple[str, ...] = ()
    """Directories below which containers may see local data, to read it; of an isolated run."""
    isolated: bool = False
    """Whether containers must show nothing of the machine but the run's own files."""
    shares: Path | None = None
    """The directory of the daemon that enforces shares of GPUs."""
    share_env: dict[str, dict[str, str]] | None = None
    """What enforces the share of a worker, in its environment; by name."""
    ports: tuple[int, ...] = ()
    """Those that clients may reach."""


class WorkBefore(Message):
    """What was in the work directory before the workers began."""

    FILE = "before.json"

    files: dict[str, tuple[int, int]]
    """Size and time of change (ns), by path."""
    links: int = 0


class LeftOut(Message):
    """A file that a run left and that is not kept."""

    path: str
    bytes: int
    why: str
    """`limit` for one that is more than the job may keep, else what went wrong."""


class ResultsNote(Message):
    """What a job has for results, as of the end of its latest run."""

    FILE = "results.json"

    files: int
    bytes: int
    attempt: int
    url: str | None = None
    """Where they were copied, too."""
    left_out: tuple[LeftOut, ...] = ()
    more_left_out: int = 0
    removed_at: float | None = None
    """When they were removed, since they were too old or too much."""


class LaunchOrder(Message):
    """A run that the driver of Ray is to start, or has resized."""

    FILE = "launch.json"

    job: str
    attempt: int
    workers: tuple[Identity, ...]
    shared: str | None
    """A directory that every node sees; checkpoints are kept there, below the job's id or where
    `{job}` stands for it."""
    log_cap: int
    size: int = 0
    """Number of the latest resize that was begun."""
    began: float | None = None
    """When the workers before the first resize started."""

    def checkpoints(self) -> Path | None:
        """Where checkpoints are kept, if every node sees that."""
        if self.shared is None or "{job}" not in self.shared:
            return Path(self.shared) / self.job if self.shared else None
        return Path(self.shared.replace("{job}", self.job))


class PartOrder(LaunchOrder):
    """The same for the agent of one node."""

    spec: str
    """The job's file."""
    node: str


# -- orders to a run -------------------------------------------------------------------------


class StopOrder(Message):
    """The run must stop, after a checkpoint."""

    FILE = "stop.json"

    code: str
    text: str
    grace_s: float | None = None
    """Seconds it has at most, if that is less than the job asked for."""


class ResizeOrder(Message):
    """The run is to have these workers."""

    FILE = "resize.json"

    number: int
    target: tuple[Identity, ...]
    workers: tuple[WorkerPlan, ...]
    """Planned, where one guardian has them all."""


class LimitOrder(Message):
    """Each worker of the first role is to be held to this; 0 for no limit."""

    FILE = "limits.json"

    cpu_milli: int
    memory_mib: int


class GoOrder(Message):
    """Every node is ready: the workers begin."""

    FILE = "go.json"

    address: str
    port: int | None
    """Where workers of torchrun meet, on the node of rank 0."""
    ran_s: float
    """How long workers before a resize ran; the time limit counts it."""
    logs: dict[str, int]
    """How long the server's logs are that the workers continue."""


class Members(Message):
    """Who takes part among torchrun agents from now on, and where they meet."""

    FILE = "members.json"

    number: int
    members: tuple[str, ...]
    store: str


# -- attachments to a run -----------------------------------------------------------------------


class AttachOrder(Message):
    """What a client wants beside a worker: a command (`argv`), the worker's own input and output
    (`console`), or a connection to a port; one of them."""

    worker: str = "0"
    """A name such as worker-0, or a rank."""
    argv: tuple[str, ...] = ()
    tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = "xterm"
    console: bool = False
    offset: int = 0
    """Of a console: bytes of the log that the client has."""
    port: int = 0


# -- what a run tells ---------------------------------------------------------------------------


class EndReason(Message):
    """Why a run ended, as in the journal."""

    code: str
    text: str


class Verdict(Message):
    """How a run ended."""

    FILE = "verdict.json"

    type: str
    """JobExited or LaunchFailed."""
    reason: EndReason
    outcome: str | None = None
    exit_code: int | None = None

    def event(self, job: str, attempt: int, when: float) -> "Event":
        """The last event of a run that ended so."""
        return Event(job=job, attempt=attempt, when=when, **vars(self))


class Event(Message):
    """A fact as the journal has it, and when it happened (seconds since 1970); `Ready` and
    `number` are for the executor alone."""

    FILE = "events.jsonl"

    type: str
    job: str
    attempt: int
    when: float
    at: float | None = None
    stage: str | None = None
    number: int | None = None
    """Which resize it is about."""
    port: int | None = None
    """Of `Ready`: one that is free on the node."""
    outcome: str | None = None
    reason: EndReason | None = None
    exit_code: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether nothing comes after it."""
        return self.type in ("JobExited", "LaunchFailed")


class ProgressReport(Message):
    """How far a training is."""

    FILE = "progress.json"

    done: float
    detail: dict[str, float]
    not_finite: tuple[str, ...] = ()
    """Metrics that are NaN or infinite."""


class StepWord(Message):
    """What the step beside a job in a pod says: how far it is, and at the end what it left."""

    progress: ProgressReport | None = None
    kept: str = ""


class SizeRequest(Message):
    """How many workers the job itself asks for."""

    FILE = "request.json"

    workers: int


class Processes(Message):
    """The processes of a run, workers first, each with its start in ticks since boot: for an
    executor that has to clean up after a guardian."""

    FILE = "processes.json"

    known: tuple[tuple[int, int], ...]


def exited(outcome: str, code: str, text: str, exit_code: int | None = None) -> Verdict:
    """The run ended."""
    reason = EndReason(code=code, text=text)
    return Verdict(type="JobExited", reason=reason, outcome=outcome, exit_code=exit_code)


def refused(text: str, *, may_pass: bool = False) -> Verdict:
    """The run never started; `may_pass`: another attempt may find what this one did not."""
    code = "error" if may_pass else "launch_failed"
    return Verdict(type="LaunchFailed", reason=EndReason(code=code, text=text))


# -- what trainings are told and say ------------------------------------------------------------


HOLD, STOP_AT, AGREED, STEPPING = "resize.json", "stop-at.json", "agreed.json", "stepping"
"""Files of `presage.job`: stand still, after which step, all have heard of that, and whether the
program hears of any of it. Those who stand still say so in `held-RANK`."""


class Word(Message):
    """Word between Presage and `presage.job` or a torchrun agent, in files beside the one for
    progress. They may be of another version of Presage, so there is none in it."""

    number: int
    """Which resize it is about."""
    workers: int | None = None
    apart: bool = False
    """Whether the ranks are on several machines."""
    call: int | None = None
    """The step after which all stand still."""


def say(place: Path, name: str, word: Word) -> None:
    """Leave word, whole or not at all."""
    new = place / f"{name}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    with os.fdopen(os.open(new, flags, 0o666), "w") as out:
        out.write(json.dumps(encode(word)))
    new.replace(place / name)


def hear(place: Path, name: str) -> Word | None:
    """The word that was left under a name; None if there is none that is understood."""
    try:
        return loads(Word, read_bounded(place / name))
    except (OSError, MessageError):
        return None


# -- on a Ray cluster ---------------------------------------------------------------------------


class Placed(Message):
    """Where the workers of a run are, and whether they may have begun."""

    FILE = "placed.json"

    nodes: dict[str, str]
    """Ray's ids by name."""
    serves: dict[str, bool]
    """By node: whether the workers there only serve the others."""
    size: int
    reservation: str
    grace_s: float
    go: GoOrder | None = None
    changing: bool = False
    """Whether the workers are being stopped so that others can take their place."""


class Saved(Message):
    """Checkpoints that were made on a node: units that changed, and those that went."""

    changed: Listing
    deleted: tuple[str, ...]


class Cursor(Message):
    """How far the server knows what happens to a run on a node."""

    logs: dict[str, int]
    events: int = 0
    progress: ProgressReport | None = None
    request: tuple[int, int] | None = None
    words: dict[str, Word] | None = None
    saved: str | None = None
    """Digest of what was saved."""
    drained: bool = False


class RunNews(Message):
    """What happened to a run on a node since a cursor, and the cursor to ask with next."""

    cursor: Cursor
    events: tuple[Event, ...] = ()
    logs: dict[str, tuple[int, bytes]] | None = None
    """By worker, and of the telemetry: from where on, and what."""
    progress: ProgressReport | None = None
    request: tuple[int, int] | None = None
    """A mark that tells this wish from others, and the workers it asks for."""
    words: dict[str, Word] | None = None
    saved: str | None = None
    drained: bool = False
    """Whether the run is over here and nothing more will come."""


class LinkLine(Message):
    """What the server says to the driver, each about a data directory."""

    serve: str | None = None
    leave: str | None = None
    look: str | None = None
    pilots: int | None = None
    """How many nodes pilots should hold for the jobs there are."""


class DriverLine(Message):
    """What the driver says to the server; nothing if all is as before."""

    error: str | None = None
    nodes: tuple[tuple[str, Any], ...] | None = None
    """The cluster's id and the node, as the model's codec writes it."""
    held: tuple[tuple[str, int, int, int], ...] = ()
    """What others hold on nodes: name, milli-CPUs, MiB and GPUs."""
    draining: tuple[str, ...] = ()
    """Nodes that take nothing new."""
    further: tuple[Any, ...] = ()
    """Nodes that are not there and that could be, as the model's codec writes them."""


class AgentNote(Message):
    """Where the agent of a node answers that Slurm started, and what it was given there."""

    FILE = "agent.json"

    node: str
    port: int
    token: str
    """Whoever asks must know it; the file is for its owner alone."""
    slurm_job: int
    cpus: float
    memory_mib: int
    """0 where Slurm does not limit it."""
    gpus: tuple[str, ...]
    """What CUDA calls them."""


class SlurmSetup(Message):
    """How a driver uses a Slurm."""

    data: str
    mode: str
    """`jobs`: a Slurm job for each run; `pilot`: Slurm jobs that hold nodes for all runs."""
    partition: str | None = None
    options: tuple[str, ...] = ()
    """More options of sbatch."""
    time_limit_s: float | None = None
    """Of Slurm jobs whose run has no limit of its own, and of pilots."""
    pilot_nodes: int = 1
    """That pilots hold at any time."""
    pilot_most: int = 0
    """That they hold while jobs wait; 0 for never more than that."""
    pilot_idle_s: float = 600.0
    """After which a node without work is given back."""
    pilot_pause_s: float = 30.0
    """Between one time that nodes are added and the next."""
    pilot_gpus: int | None = None
    """Of each node; None for all that it has."""
    pilot_cpus: int | None = None
    pilot_memory_mib: int | None = None


class HeadNote(Message):
    """The head of a Ray cluster that was started here."""

    FILE = "ray-head.json"

    pid: int
    port: int
    start: int
    """In ticks since boot."""
